"""Callbacks in simulated time."""

import heapq


class Event:
    def __init__(self, at, callback):
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class Scheduler:
    def __init__(self):
        self.now = 0
        self._queue = []

    def __len__(self):
        """Events that are still to run."""
        return len(self._queue)

    def at(self, when, callback):
        if when < self.now:
            raise ValueError(f"{when} is in the past, now is {self.now}")
        event = Event(when, callback)
        heapq.heappush(self._queue, (when, event))
        return event

    def after(self, delay, callback):
        return self.at(self.now + delay, callback)

    def run_until(self, end):
        """Run everything that is due up to and including `end`; afterwards it is `end`."""
        due = []
        while self._queue and self._queue[0][0] <= end:
            due.append(heapq.heappop(self._queue))
        for when, event in due:
            self.now = when
            event.callback()
        self.now = end
