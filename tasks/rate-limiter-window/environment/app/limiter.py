"""A sliding-window rate limiter."""

from collections import defaultdict, deque

from clock import SystemClock


class RateLimiter:
    def __init__(self, limit, window_seconds, clock=None):
        if limit < 1 or window_seconds <= 0:
            raise ValueError("limit and window_seconds must be positive")
        self.limit = limit
        self.window_seconds = window_seconds
        self._clock = clock or SystemClock()
        self._calls = defaultdict(deque)

    def allow(self, key):
        """Count a call and tell whether it is within the limit."""
        now = self._clock.now()
        calls = self._recent(key, now)
        calls.append(now)
        return len(calls) <= self.limit

    def remaining(self, key):
        return max(0, self.limit - len(self._recent(key, self._clock.now())))

    def retry_after(self, key):
        """Seconds until the next call of this key is allowed; 0 when it is allowed now."""
        now = self._clock.now()
        calls = self._recent(key, now)
        if len(calls) < self.limit:
            return 0.0
        return calls[-1] + self.window_seconds - now

    def _recent(self, key, now):
        calls = self._calls[key]
        while calls and now - calls[0] > self.window_seconds:
            calls.popleft()
        return calls
