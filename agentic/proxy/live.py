"""A session with what is going on around it: its journal, its lock, its running generations, who waits for them.

All state changes under the lock, first in the journal and then in memory, so the two never disagree about the order. A
record that must not be lost although the journal cannot take it now (a full disk) is owed: it is written, and applied,
before the next one. Dropping is under the lock too, and the last thing there: nothing is written to the journal of a
dropped session, whose name may be another's by then. A generation belongs to its session; when the last client that
waits for it has gone, it is stopped after a grace in which a retry may join it.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

from .conversation import KnownConversations, Message
from .errors import GenerationFailed, JournalError, SessionSealed, UnknownSession
from .events import Delivered, Event, Opened
from .generating import Cut, Generating
from .journal import Journal
from .models import Ending
from .session import Call, CallState, Phase, Session

LARGE_SESSION_TOKENS = 32_000
"""From how many tokens on a session's result is made in a thread: on the event loop it takes 4 ms, at 130,000 18 ms."""
TAKING_SECONDS = 2.0
"""How long sealing waits for clients to take the replies that they are being sent."""


@dataclass(slots=True)
class Running:
    """One call under way."""

    generating: Generating
    answer: asyncio.Task[Cut | None]
    """Gives None once the reply is committed, else why there is none."""
    farewell: asyncio.TimerHandle | None = None
    """Stops it when nobody came back."""
    message: Message | None = None
    """The reply, once it is committed."""


class LiveSession:
    """A session's surroundings; the state is in `session`."""

    def __init__(self, session: Session, journal: Journal, is_written: bool = False) -> None:
        """`is_written` says that the session comes from the journal, so its first record is there."""
        self.session = session
        self.known = KnownConversations()
        self.closing = False
        self.running: dict[int, Running] = {}
        self.admission = asyncio.Lock()
        """One request is admitted at a time, so a retry always finds what it repeats."""
        self.seal_lock = asyncio.Lock()
        self.active_at = time.monotonic()
        """When the last call or heartbeat was."""
        self._chores: set[asyncio.Task[None]] = set()
        self._journal = journal
        self._lock = asyncio.Lock()
        self._is_written = is_written
        self._opening: asyncio.Task[None] | None = None
        self._owed: list[Event] = []
        self._is_dropped = False
        self._left = asyncio.Event()
        """Set when a client waits no more."""

    async def open(self, event: Opened) -> None:
        """Write the first record; everybody who opens the session waits for it."""
        if self._is_written:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(event))
        await asyncio.shield(self._opening)

    async def drop(self) -> bool:
        """Remove the journal once nothing is being written; says whether this call did."""
        return await asyncio.shield(asyncio.create_task(self._drop()))

    async def record(self, *events: Event, is_durable: bool = True) -> None:
        """Write events, then apply them; all or none. Durable ones are on disk when this returns, if fsync is on."""
        await asyncio.shield(self._record(events, is_durable))

    def owe(self, event: Event) -> None:
        """Write and apply an event before the next one."""
        self._owed.append(event)

    async def seal(self, at: float, ending: Ending) -> None:
        """Write and apply the last event, if there is none yet."""
        await asyncio.shield(self._seal(at, ending))

    async def end_generations(self, cut: Cut) -> None:
        """Stop what is being generated, and wait until all of it is recorded."""
        self.closing = True
        async with self.admission:
            pending: list[asyncio.Task[Cut | None] | asyncio.Task[None]] = []
            for running in self.running.values():
                running.generating.stop(cut)
                pending.append(running.answer)
            pending += self._chores
        if pending:
            await asyncio.wait(pending)

    async def end_deliveries(self) -> None:
        """Give clients that are being sent a reply a moment to take it; who has not by then never received it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TAKING_SECONDS):
                while self._being_sent():
                    self._left.clear()
                    await self._left.wait()
        for call in self._being_sent():
            await self.record(Delivered(call=call.number, delivered=False))
        if self._chores:
            await asyncio.wait(self._chores)

    def _being_sent(self) -> list[Call]:
        return [c for c in self.session.calls.values() if c.waiting and c.delivered and not c.received]

    def join(self, call: Call) -> None:
        """A client waits for the call."""
        call.waiting += 1
        running = self.running.get(call.number)
        if running is not None and running.farewell is not None:
            running.farewell.cancel()
            running.farewell = None

    def leave(self, call: Call, grace_seconds: float) -> None:
        """A client waits no more; the last one to leave a running call starts its grace."""
        call.waiting -= 1
        self._left.set()
        running = self.running.get(call.number)
        if call.waiting or running is None or call.state is not CallState.RUNNING:
            return
        refusal = GenerationFailed(f"the client went away and nobody came back within {grace_seconds:g} s: ask again")
        cut = Cut("abandoned", refusal)
        running.farewell = asyncio.get_running_loop().call_later(grace_seconds, running.generating.stop, cut)

    def chore(self, event: Event) -> None:
        """Record an event without waiting for it; sealing does."""
        task = asyncio.create_task(self._record_unless_sealed(event))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def forget_conversations(self) -> None:
        """No request is planned any more."""
        self.known = KnownConversations()

    def touch(self) -> None:
        """Note that somebody is there."""
        self.active_at = time.monotonic()

    def idle_seconds(self) -> float:
        """Since anybody was there; 0 while a call runs."""
        return 0.0 if self.running else time.monotonic() - self.active_at

    async def _open(self, event: Opened) -> None:
        async with self._lock:
            self._refuse_dropped()
            await self._journal.append(event.spec.session_id, [event])

    async def _drop(self) -> bool:
        async with self._lock:
            if self._is_dropped:
                return False
            await self._journal.remove(self.session.spec.session_id)
            self._is_dropped = True
            return True

    def _refuse_dropped(self) -> None:
        if self._is_dropped:
            raise UnknownSession(f"session {self.session.spec.session_id} was dropped: open it again")

    async def _record(self, events: Iterable[Event], is_durable: bool) -> None:
        async with self._lock:
            self._refuse_dropped()
            if self.session.phase is Phase.SEALED:
                raise SessionSealed(f"session {self.session.spec.session_id} is sealed")
            await self._write([*self._owed, *events], is_durable)

    async def _seal(self, at: float, ending: Ending) -> None:
        async with self._lock:
            self._refuse_dropped()
            if self.session.phase is Phase.SEALED:
                return
            while self._owed:
                await self._write(list(self._owed), is_durable=True)
            # Under the lock, so of a state that nothing changes before it is written.
            if self.session.graph.count_held() < LARGE_SESSION_TOKENS:
                sealed = self.session.seal(at, ending)
            else:
                sealed = await asyncio.to_thread(self.session.seal, at, ending)
            await self._write([sealed], is_durable=True)

    async def _write(self, events: list[Event], is_durable: bool) -> None:
        owed = len(self._owed)
        await self._journal.append(self.session.spec.session_id, events, is_durable)
        del self._owed[:owed]
        for event in events:
            self.session.apply(event)

    async def _record_unless_sealed(self, event: Event) -> None:
        try:
            await self._record([event], is_durable=True)
        except (SessionSealed, UnknownSession):
            return
        except JournalError:
            self.owe(event)
