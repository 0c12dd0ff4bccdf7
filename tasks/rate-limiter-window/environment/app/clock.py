"""Clocks that a limiter can be given."""

import time


class SystemClock:
    def now(self):
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start=0.0):
        self._now = start

    def now(self):
        return self._now

    def advance(self, seconds):
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now += seconds
