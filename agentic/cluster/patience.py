"""How long what is in the way of something may stay there, and since when it has. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentic.cluster.troubles import Trouble


@dataclass(frozen=True, slots=True)
class Patience:
    """With a trouble, by whether it may pass."""

    lasting_seconds: float = 60.0
    """What does not pass without a change: long enough for a pull, or a scheduler, to be wrong once."""
    passing_seconds: float = 900.0
    """What may pass by itself, such as room that others hold; in a queue it does not count."""
    start_seconds: float = 3600.0
    """The whole start, pulls of large images included."""
    look_seconds: float = 2.0
    """Between two looks for troubles while nothing changes."""
    gone_seconds: float = 300.0
    """How long what was deleted may take to go, its pods' grace included."""
    absent_seconds: float = 30.0
    """How long a trouble may be away and still be the same: a container that ends again and again runs in between."""


class _Seen(NamedTuple):
    first: float
    last: float


class TroubleClock:
    """Since when each trouble has been there."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._seen: dict[tuple[str, str], _Seen] = {}

    def fresh(self, troubles: Sequence[Trouble], now: float) -> list[Trouble]:
        """Take a look down; returns those that were not there lately."""
        allowed = self._patience.absent_seconds
        known = {key: seen for key, seen in self._seen.items() if now - seen.last <= allowed}
        found = {(one.name, one.where): one for one in troubles}
        new = [one for key, one in found.items() if key not in known]
        self._seen = known | {key: _Seen(known[key].first if key in known else now, now) for key in found}
        return new

    def overdue(self, troubles: Sequence[Trouble], now: float) -> Trouble | None:
        """One of those of the last look that has lasted too long; what stays without a change goes first."""
        for one in sorted(troubles, key=lambda trouble: trouble.transient):
            allowed = self._patience.passing_seconds if one.transient else self._patience.lasting_seconds
            if now - self._seen[one.name, one.where].first >= allowed:
                return one
        return None
