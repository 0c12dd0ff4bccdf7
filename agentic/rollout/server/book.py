"""What the server knows of each trial, and how that comes back from the journal.

Entries and rows; no clock, no file. An entry moves accepted → started → ended and never back. Each move is a row of the
journal and an event for readers, who are told of it only once the row is on the disk: `move`, write, `tell`. Reading
the same row twice is like reading it once.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from agentic.rollout.server.wire import TrialEvent, TrialOrder, TrialState, TrialStatus
from agentic.rollout.trial import TrialResult

RESTARTED = "ServerRestarted"
"""The exception that a trial ends with that was running when its server died."""

_RESULT: TypeAdapter[TrialResult] = TypeAdapter(TrialResult)
_ORDER = {TrialState.ACCEPTED: 0, TrialState.STARTED: 1, TrialState.ENDED: 2}


class Ending(NamedTuple):
    """Why a trial is ended before its time, in the words of its result."""

    exception: str
    message: str


@dataclass(eq=False)
class Entry:
    """One trial."""

    trial_id: str
    nonce: str
    order: TrialOrder | None
    """None once it has ended: nothing but the result is needed then, least of all its key."""
    owner: str = ""
    """Whose key ordered it (see `keys.py`)."""
    events: list[TrialEvent] = field(default_factory=list)
    told: int = 0
    """How many of the events are on the disk, and so known to readers."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next `wake`, and then another one takes its place."""
    ending: Ending | None = None
    work: asyncio.Task[None] | None = None

    @property
    def state(self) -> TrialState:
        """Its last move, told or not."""
        return self.events[-1].state

    @property
    def is_over(self) -> bool:
        """Whether readers know that it has ended."""
        return self.told > 0 and self.events[self.told - 1].state is TrialState.ENDED

    def move(
        self, state: TrialState, now: float, result: TrialResult | None = None, *, has_folder: bool = False
    ) -> TrialEvent | None:
        """The event of going there; None when the trial is that far already."""
        if self.events and _ORDER[state] <= _ORDER[self.state]:
            return None
        number = len(self.events) + 1
        event = TrialEvent(number=number, state=state, unix_seconds=now, result=result, has_folder=has_folder)
        self.events.append(event)
        if state is TrialState.ENDED:
            self.order = None
        return event

    def tell(self) -> None:
        """Let readers know of all moves."""
        self.told = len(self.events)
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def status(self) -> TrialStatus:
        """Where it stands, as far as readers know."""
        last = self.events[self.told - 1]
        return TrialStatus(
            trial_id=self.trial_id,
            state=last.state,
            events=last.number,
            result=last.result,
            has_folder=last.has_folder,
        )


def row_of(entry: Entry, event: TrialEvent) -> dict[str, Any]:
    """The journal's row of one move."""
    row: dict[str, Any] = {"trial": entry.trial_id, "state": event.state, "at": event.unix_seconds}
    if event.number == 1:
        row |= {"nonce": entry.nonce, "owner": entry.owner}
        if entry.order is not None:
            row["order"] = entry.order.model_dump(mode="json")
    if event.result is not None:
        row |= {"result": _RESULT.dump_python(event.result, mode="json"), "folder": event.has_folder}
    return row


def rows_of(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """The rows from which these entries can be read back."""
    for entry in entries:
        for event in entry.events:
            yield row_of(entry, event)


def read_rows(rows: Iterable[dict[str, Any]]) -> dict[str, Entry]:
    """The entries that the rows tell of, in the order in which they were accepted."""
    entries: dict[str, Entry] = {}
    for row in rows:
        trial_id, state = row["trial"], TrialState(row["state"])
        if state is TrialState.ACCEPTED:
            order = TrialOrder.model_validate(row["order"]) if "order" in row else None
            entries.setdefault(trial_id, Entry(trial_id, row["nonce"], order, row.get("owner", "")))
        entry = entries.get(trial_id)
        if entry is None:
            continue  # The machine died with the first line unwritten; nobody was told of this trial.
        result = _RESULT.validate_python(row["result"]) if "result" in row else None
        entry.move(state, row["at"], result, has_folder=bool(row.get("folder")))
        entry.told = len(entry.events)
    return entries
