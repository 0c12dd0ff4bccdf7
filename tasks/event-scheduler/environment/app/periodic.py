"""Callbacks that repeat."""


class Periodic:
    """Runs a callback at start + n * interval, for n = 1, 2, ... until stopped."""

    def __init__(self, scheduler, interval, callback):
        if interval <= 0:
            raise ValueError("interval must be positive")
        self._scheduler = scheduler
        self._interval = interval
        self._callback = callback
        self._event = scheduler.after(interval, self._run)

    def _run(self):
        self._callback()
        self._event = self._scheduler.after(self._interval, self._run)

    def stop(self):
        self._event.cancel()
