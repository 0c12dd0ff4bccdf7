"""A session with what is going on around it: its journal, its lock, its running generations.

All state changes under the lock, first in the journal and then in memory, so the two never disagree about the order.
What was started is written together with what became of it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from .engines.base import Chunk
from .errors import JournalError, RequestRefused, SessionSealed
from .events import Committed, Event, Failed, Lost, Opened, Started
from .graph import Plan
from .journal import Journal
from .session import Call, Phase, Session


@dataclass(slots=True)
class Draft:
    """What a generation has given so far."""

    chunks: list[Chunk] = field(default_factory=list)

    def committed(self, call: int, plan: Plan, at: float, delivered: bool, whole: bool) -> Committed:
        """The record of what came, as a whole reply or as the rest of an aborted one."""
        last = self.chunks[-1]
        return Committed(
            call=call,
            at=at,
            anchor=plan.anchor,
            context=plan.context,
            first_prompt=plan.first_prompt,
            ids=tuple(i for chunk in self.chunks for i in chunk.ids),
            logprobs=tuple(logprob for chunk in self.chunks for logprob in chunk.logprobs),
            versions=tuple(chunk.version for chunk in self.chunks for _ in chunk.ids),
            finish=last.finish or "abort",
            stop_reason=last.stop_reason,
            delivered=delivered,
            answered=whole,
            state_key=None,
            verbatim=None,
        )

    @property
    def has_tokens(self) -> bool:
        """Whether anything was sampled."""
        return any(chunk.ids for chunk in self.chunks)


class LiveSession:
    """A session with what is going on around it: its lock, journal and running generations."""

    def __init__(self, session: Session, journal: Journal, is_written: bool = False) -> None:
        """`is_written` says that the session comes from the journal, so its first record is there."""
        self.session = session
        self.closing = False
        self.answers: dict[int, asyncio.Task[RequestRefused | None]] = {}
        """One task a running call; gives None once the reply is committed, else why there is none."""
        self.generating: dict[int, asyncio.Task[None]] = {}
        self.chores: set[asyncio.Task[None]] = set()
        self.seal_lock = asyncio.Lock()
        self._journal = journal
        self._lock = asyncio.Lock()
        self._is_written = is_written
        self._opening: asyncio.Task[None] | None = None
        self._unwritten: dict[int, Started] = {}

    async def open(self, event: Opened) -> None:
        """Write the first record; everybody who opens the session waits for it."""
        if self._is_written:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._journal.append(event.spec.session_id, [event]))
        await asyncio.shield(self._opening)

    def start(self, event: Started) -> Call:
        """Note a new call; it is written together with what becomes of it."""
        self.session.apply(event)
        self._unwritten[event.call] = event
        return self.session.calls[event.call]

    async def record(self, *events: Event) -> None:
        """Write events, then apply them; all or none."""
        await asyncio.shield(self._record(events))

    async def seal(self, at: float) -> None:
        """Write and apply the last event, if there is none yet."""
        await asyncio.shield(self._seal(at))

    async def end_generations(self) -> None:
        """Abort what is being generated, and wait until all of it is recorded."""
        for task in list(self.generating.values()):
            task.cancel()
        pending = [*self.answers.values(), *self.chores]
        if pending:
            await asyncio.wait(pending)

    def chore(self, event: Event) -> None:
        """Record an event without waiting for it; sealing does."""
        task = asyncio.create_task(self._record_unless_sealed(event))
        self.chores.add(task)
        task.add_done_callback(self.chores.discard)

    async def _record(self, events: Iterable[Event]) -> None:
        async with self._lock:
            if self.session.phase is Phase.SEALED:
                raise SessionSealed(f"session {self.session.spec.session_id} is sealed")
            numbers = [event.call for event in events if isinstance(event, Committed | Failed)]
            started = [self._unwritten[number] for number in numbers if number in self._unwritten]
            await self._journal.append(self.session.spec.session_id, [*started, *events])
            for start in started:
                del self._unwritten[start.call]
            for event in events:
                self.session.apply(event)

    async def _seal(self, at: float) -> None:
        async with self._lock:
            if self.session.phase is not Phase.SEALED:
                event = self.session.seal(at)  # under the lock, so of a state that nothing changes before it is written
                await self._journal.append(self.session.spec.session_id, [event])
                self.session.apply(event)

    async def _record_unless_sealed(self, event: Event) -> None:
        try:
            await self._record([event])
        except SessionSealed:
            return
        except JournalError as error:
            self.session.apply(Lost(reason=str(error)))
