"""Who still wants what it asked for: each holder says so from time to time, and one that has not is gone.

Pure but for the clock, which is given. A holder that was killed says nothing; a lease is how its trials end all the
same.
"""

import time
from collections.abc import Callable


class Leases:
    """Holders, each with the time until which it counts as there."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}

    def renew(self, holder: str) -> None:
        """This holder is there."""
        self._until[holder] = self._clock() + self._seconds

    def end(self, holder: str) -> None:
        """This holder wants nothing any more. Unknown: nothing."""
        self._until.pop(holder, None)

    def expired(self) -> list[str]:
        """Holders that have not been heard of for too long; each is named until it is ended or renewed."""
        now = self._clock()
        return [holder for holder, until in self._until.items() if until < now]
