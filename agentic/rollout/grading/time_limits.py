"""How long the tests may take, and whose doing it is when they get less: pure, but for the clock that it is given.

What a task allows its tests is cut by what grading has in all, less a part that is spared for everything else. When the
verifier's own waiting (for sandboxes, for lost ones) takes more than that part, the tests get less than they were
promised, and then running out of time says nothing about them. Reading the agent's folder may take its time too, but a
folder that takes long is the agent's: it shortens what is promised, so that nobody gains by it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentic.rollout.errors import GradingTimeError

SPARE_SECONDS = 15.0
SPARE_SHARE = 0.2
"""What of the time for grading is spared for everything but the tests: the lesser of the two."""

READING_SECONDS = 120.0
READING_SHARE = 1 / 3
"""How long the agent's folder may take to be read out: the lesser of the two. A repository of 50,000 files takes one
second."""

SLOW_MACHINE = 0.25
"""The part of that time in which an untouched folder can be read, unless this machine is what is slow."""


def seconds_for(allowed_seconds: float) -> float:
    """What grading has to have in all, for tests to get as much as their task allows them."""
    return min(allowed_seconds + SPARE_SECONDS, allowed_seconds / (1 - SPARE_SHARE))


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of one run of the tests."""

    seconds: float
    is_cut: bool
    """Whether it is less than what they were promised, because the verifier waited."""


class GradingTime:
    """Of one trial; begins when it is made."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._spare = min(SPARE_SECONDS, SPARE_SHARE * seconds)
        self._late = 0.0
        self._is_late = False

    @property
    def reading_seconds(self) -> float:
        """How long the agent's folder may take to be read."""
        return min(READING_SECONDS, READING_SHARE * self._seconds)

    def count_reading(self, seconds: float) -> None:
        """What of it is more than the spared time holds is taken from the tests."""
        self._late = max(0.0, seconds - self._spare / 2)
        self._is_late = seconds >= self.reading_seconds

    def check_reading(self, untouched_seconds: float) -> None:
        """When the agent's folder did not come out in time. Raises GradingTimeError if an untouched one is as slow."""
        if self._is_late and untouched_seconds > SLOW_MACHINE * self.reading_seconds:
            raise GradingTimeError(
                f"reading an untouched folder took {untouched_seconds:.0f} s: raise rollout.grading_seconds"
            )

    def of_tests(self, allowed_seconds: float) -> Allowance:
        """Given what the task allows."""
        promised = min(allowed_seconds, self._seconds - self._spare - self._late)
        left = self._began + self._seconds - self._spare / 4 - self._clock()
        return Allowance(min(promised, left), is_cut=left < promised)
