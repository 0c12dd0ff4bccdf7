"""All sessions of one process: opening, sealing, expiring, pausing, and taking them up again after a restart.

An open session is in memory. A sealed one leaves it at once where a journal can give it back, else after a while. What
nobody seals expires: it is sealed as it stands and says so. Knows nothing of requests.
"""

import asyncio
import logging
import time

from .engines.base import Engine
from .errors import (
    DamagedJournal,
    InvalidRequest,
    JournalError,
    SessionConflict,
    SessionSealed,
    TooManySessions,
    UnknownSession,
    WorkerUnavailable,
)
from .events import Event, Failed, Opened
from .generating import Cut, Gate
from .graph import NOT_SAMPLED
from .journal import Journal
from .live import LiveSession
from .metrics import ProxyMetrics
from .models import Ending, Paused, SealedSession, SessionInfo, SessionSpec, check_session_id
from .sampling_state import SamplingState, StateFile
from .session import Phase, Session
from .settings import ProxySettings

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""How often what is due is looked for, at least; more often where the settings' times are short."""


class Sessions:
    """The sessions, and whether they may sample."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        settings: ProxySettings,
        metrics: ProxyMetrics,
        kept: StateFile | None = None,
    ) -> None:
        """`kept` is what the processes of a fleet know together of pauses and versions."""
        self.gate = Gate()
        self._kept = kept
        self._engine = engine
        self._journal = journal
        self._settings = settings
        self._metrics = metrics
        self._live: dict[str, LiveSession] = {}
        self._ended: dict[str, tuple[float, SessionInfo]] = {}
        """Expired sessions, for the list: when they ended, by the monotonic clock."""
        self._version: int | None = None
        """Of the weights, once somebody said it."""
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up the open sessions that the journal holds, and look after them from now on."""
        self.adopt_state()
        for session_id in await self._journal.session_ids():
            session = await self._recover(session_id)
            if session is not None and session.phase is Phase.OPEN:
                await self._take_up(session)
        self._say_what_was_taken_up()
        self._sweeper = asyncio.create_task(self._sweep())

    def _say_what_was_taken_up(self) -> None:
        """Versions of journals are told and not adopted: a trainer that went back to a checkpoint has lower ones."""
        last = max((live.session.graph.last_version() for live in self._live.values()), default=NOT_SAMPLED)
        if last > NOT_SAMPLED:
            logger.info(
                "took up %d open sessions, with tokens of versions up to %d: new ones are of the version that the "
                "engine or --policy-version says, until resume says another",
                len(self._live),
                last,
            )

    def adopt_state(self) -> None:
        """Be paused, and sample with the version, as the other processes of a fleet are and do."""
        if self._kept is None:
            return
        state = self._kept.read()
        if state.paused:
            self.gate.close()
            self._metrics.paused = 1
        if state.version is not None and state.version > (-1 if self._version is None else self._version):
            self._version = state.version
            self._engine.use_version(state.version)

    async def stop(self) -> None:
        """Abort everything under way; sessions stay as they are."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait({self._sweeper})
        stopping = Cut("restart", WorkerUnavailable("this proxy is stopping: ask again"))
        await asyncio.gather(*(live.end_generations(stopping) for live in self._live.values()))

    async def open(self, spec: SessionSpec) -> Opened:
        """Open a session; the same again changes nothing, a different one is a SessionConflict."""
        live = self._live.get(spec.session_id)
        try:
            held = live.session if live is not None else await self._read_sealed(spec.session_id)
        except DamagedJournal as error:
            held = None
            if spec.session_id not in self._live:
                await self._set_aside(spec.session_id, error)
        live = self._live.get(spec.session_id)  # somebody else may have opened it meanwhile
        session = live.session if live is not None else held
        if session is None:
            live = self._make(spec)
            session = live.session
        if session.spec != spec:
            raise SessionConflict(
                f"session {spec.session_id} is open with another specification: seal or drop it first"
            )
        if live is not None:
            await self._write_opened(live)
        return session.opened

    async def seal(self, session_id: str, ending: Ending = "sealed") -> SealedSession:
        """End a session: abort what is under way, keep what it sampled, and give the result."""
        live = self._live.get(session_id)
        if live is None:
            return (await self._must_read_sealed(session_id)).result()
        async with live.seal_lock:
            if live.session.phase is Phase.OPEN:
                await live.end_generations(_sealed_cut(live))
                await live.end_deliveries()
                await live.seal(time.time(), ending)
                self._count_sealed(live)
        result = live.session.result()
        if self._journal.keeps and self._live.get(session_id) is live:
            del self._live[session_id]
        return result

    async def fetch(self, session_id: str) -> SealedSession | None:
        """The result of a sealed session, None while it is open."""
        live = self._live.get(session_id)
        session = live.session if live is not None else await self._must_read_sealed(session_id)
        return None if session.phase is Phase.OPEN else session.result()

    async def drop(self, session_id: str) -> None:
        """Forget a session and its journal; harmless if there is none."""
        _refuse_no_name(session_id)
        self._ended.pop(session_id, None)
        live = self._live.get(session_id)
        if live is not None:
            await live.end_generations(_sealed_cut(live))
            if await live.drop() and self._live.get(session_id) is live:
                self._forget(live)
        else:
            await self._journal.remove(session_id)

    async def find(self, session_id: str) -> LiveSession:
        """An open session, or the refusal that says what became of it."""
        live = self._live.get(session_id)
        if live is None:
            _refuse_no_name(session_id)
            if not await self._journal.is_sealed(session_id):  # not read whole: agents go on asking after the end
                raise UnknownSession(f"no session {session_id!r} is open here")
            raise SessionSealed(f"session {session_id} is sealed: open another one")
        return live

    async def heartbeat(self, session_id: str) -> SessionInfo:
        """Say that a session is still wanted. Raises SessionSealed or UnknownSession."""
        live = await self.find(session_id)
        if live.session.phase is not Phase.OPEN:
            raise SessionSealed(f"session {session_id} is sealed: open another one")
        live.touch()
        return _info(live)

    def list(self) -> "list[SessionInfo]":
        """Sessions in memory, and those that expired."""
        return [info for _, info in self._ended.values()] + [_info(live) for live in self._live.values()]

    async def pause(self) -> Paused:
        """Let nothing sample: what runs is interrupted and goes on later with the tokens so far."""
        self.gate.close()
        self._metrics.paused = 1
        self._keep(SamplingState(paused=True, version=self._version))
        running = [running.generating for live in self._live.values() for running in live.running.values()]
        stopped = await asyncio.gather(*(generating.interrupt() for generating in running))
        self._metrics.calls_interrupted += sum(stopped)
        logger.info("sampling is paused, %d generations interrupted", sum(stopped))
        return Paused(paused=True, interrupted=sum(stopped))

    async def resume(self, version: int | None) -> Paused:
        """Go on, with weights of this version if one is given."""
        if version is not None:
            if not 0 <= version < 2**32:
                raise InvalidRequest(f"version: {version} cannot be recorded: use 0 to {2**32 - 1}", "version")
            current = self._version or 0
            if version < current:
                raise InvalidRequest(f"version: {version} is lower than {current}: versions never decrease")
            if version > current and self.gate.is_open and any(live.running for live in self._live.values()):
                raise InvalidRequest("version: generations run: pause before the weights change", "version")
        self._keep(SamplingState(paused=False, version=self._version if version is None else version))
        if version is not None:
            self._version = version
            self._engine.use_version(version)
        self.gate.open()
        self._metrics.paused = 0
        return Paused(paused=False, interrupted=0)

    async def describe(self, session_id: str) -> str:
        """The session's token graph for a human."""
        live = self._live.get(session_id)
        session = live.session if live is not None else await self._must_read_sealed(session_id)
        return session.graph.describe()

    def _keep(self, state: SamplingState) -> None:
        if self._kept is not None:
            self._kept.write(state)

    def _make(self, spec: SessionSpec) -> LiveSession:
        if len(self._live) >= self._settings.max_sessions:
            raise TooManySessions(f"{len(self._live)} sessions are held: seal and drop some, or raise max_sessions")
        now = time.time()
        lifetime = spec.lifetime_seconds or self._settings.session_lifetime_seconds
        opened = Opened(spec=spec, at=now, expires_at=now + lifetime)
        live = self._live[spec.session_id] = LiveSession(Session(opened), self._journal)
        self._metrics.sessions_opened += 1
        self._metrics.sessions_open += 1
        return live

    async def _write_opened(self, live: LiveSession) -> None:
        opened = live.session.opened
        try:
            await live.open(opened)
        except JournalError:
            if self._live.get(opened.spec.session_id) is live:
                self._forget(live)
            raise

    def _forget(self, live: LiveSession) -> None:
        del self._live[live.session.spec.session_id]
        self._metrics.sessions_open -= live.session.phase is Phase.OPEN

    async def _recover(self, session_id: str) -> Session | None:
        if await self._journal.is_sealed(session_id):
            return None
        try:
            session = await self._read(session_id)
        except DamagedJournal as error:
            await self._set_aside(session_id, error)
            return None
        if session is None:
            await self._journal.remove(session_id)  # cut within its first record, so never acknowledged
        return session

    async def _take_up(self, session: Session) -> None:
        live = LiveSession(session, self._journal, is_written=True)
        for number in session.interrupted_calls():
            await live.record(Failed(call=number, cut="restart"))
        self._live[session.spec.session_id] = live
        self._metrics.sessions_recovered += 1
        self._metrics.sessions_open += 1

    async def _must_read_sealed(self, session_id: str) -> Session:
        _refuse_no_name(session_id)
        session = await self._read_sealed(session_id)
        if session is None:
            raise UnknownSession(f"no session {session_id!r} is open here")
        return session

    async def _read_sealed(self, session_id: str) -> Session | None:
        session = await self._read(session_id)
        return session if session is not None and session.phase is Phase.SEALED else None

    async def _read(self, session_id: str) -> Session | None:
        try:
            events = await self._journal.read(session_id)
            return await asyncio.to_thread(replay, events) if events else None
        except JournalError as error:
            raise type(error)(f"{self._journal.place(session_id)}: {error}") from error

    async def _set_aside(self, session_id: str, error: DamagedJournal) -> None:
        place = await self._journal.set_aside(session_id)
        logger.error("session %s is damaged and was set aside as %s: %s", session_id, place, error)

    def _count_sealed(self, live: LiveSession) -> None:
        session = live.session
        self._metrics.sessions_open -= 1
        self._metrics.sessions_sealed += 1
        self._metrics.sessions_incomplete += session.incomplete_reason is not None
        live.touch()
        live.forget_conversations()

    async def _sweep(self) -> None:
        waits = [SWEEP_SECONDS, self._settings.session_lifetime_seconds / 4]
        waits += [self._settings.session_idle_seconds / 4] if self._settings.session_idle_seconds else []
        while True:
            await asyncio.sleep(min(waits))
            for session_id, live in list(self._live.items()):
                if live.session.phase is not Phase.OPEN or not self._is_due(live):
                    continue
                try:
                    await self._expire(session_id, live)
                except Exception:  # one session's trouble must not keep all others from expiring
                    logger.exception("session %s could not be sealed as expired: tried again", session_id)
            self._forget_old()

    def _is_due(self, live: LiveSession) -> bool:
        expires, idle = live.session.opened.expires_at, self._settings.session_idle_seconds
        return (expires is not None and time.time() > expires) or (idle is not None and live.idle_seconds() > idle)

    async def _expire(self, session_id: str, live: LiveSession) -> None:
        try:
            sealed = await self.seal(session_id, "expired")
        except (JournalError, UnknownSession):
            return  # tried again at the next sweep, or dropped meanwhile
        if sealed.ending == "expired":
            self._metrics.sessions_expired += 1
            self._ended[session_id] = (time.monotonic(), _info(live))
            logger.warning("session %s expired: nobody sealed it", session_id)

    def _forget_old(self) -> None:
        before = time.monotonic() - self._settings.sealed_retention_seconds
        for session_id, (ended, _) in list(self._ended.items()):
            if ended < before:
                del self._ended[session_id]
        for session_id, live in list(self._live.items()):
            if live.session.phase is Phase.SEALED and live.active_at < before:
                del self._live[session_id]


def replay(events: "list[Event]") -> Session | None:
    """The session that events make, None of none; DamagedJournal if they make none."""
    if not events:
        return None
    if not isinstance(events[0], Opened):
        raise DamagedJournal(f"the first record is {events[0].kind}, not opened")
    session = Session(events[0])
    try:
        for event in events[1:]:
            session.apply(event)
    except (JournalError, LookupError, ValueError, ArithmeticError) as error:
        raise DamagedJournal(f"the records make no session: {type(error).__name__}: {error}") from error
    return session


def _refuse_no_name(session_id: str) -> None:
    """What comes in a path may be anything; from here on it is part of a file's name."""
    try:
        check_session_id(session_id)
    except ValueError as error:
        raise InvalidRequest(str(error), "session_id") from error


def _info(live: LiveSession) -> SessionInfo:
    session = live.session
    return SessionInfo(
        session_id=session.spec.session_id,
        phase=session.phase,
        ending=session.ending,
        calls=len(session.calls),
        running=len(live.running),
        sampled_tokens=session.sampled_tokens,
        opened_at=session.opened.at,
        expires_at=session.opened.expires_at,
        idle_seconds=live.idle_seconds(),
    )


def _sealed_cut(live: LiveSession) -> Cut:
    sealed = SessionSealed(f"session {live.session.spec.session_id} was sealed while this was generated")
    return Cut("sealed", sealed)
