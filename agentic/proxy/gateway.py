"""The proxy without HTTP: open, call, seal, drop. Runs the stages of a call around the pure session.

A call is admitted (is it a retry? is there budget?), planned (which tokens are held, which are new), generated,
committed (journal first, then state) and replied. A generation belongs to its session, not to the client that asked:
if the client goes away it is finished all the same, so that a retry gets it (invariant 5); if nobody comes for it,
its tokens are kept with mask 0. Sealing aborts what is under way and keeps what it had sampled; nothing commits
afterwards (invariant 7).

All state of a session changes under its lock, in the order of its journal.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from .conversation import conversation_keys, extend_key, verbatim_digest
from .dialects.base import CallReply, CallRequest
from .engines.base import Engine
from .errors import (
    ContextOverflow,
    EngineError,
    GenerationFailed,
    InvalidRequest,
    JournalError,
    RequestRefused,
    SessionConflict,
    SessionSealed,
    UnknownSession,
)
from .events import Delivered, Failed, Lost, Opened, Overflowed, Started
from .graph import Plan
from .journal import Journal
from .live import Draft, LiveSession
from .models import CallSampling, SealedSession, SessionSpec
from .planning import plan_call
from .renderers.base import Renderer
from .session import Arrival, Call, CallState, Phase, Session

logger = logging.getLogger(__name__)


class Gateway:
    """All sessions of one process."""

    def __init__(self, engine: Engine, renderer: Renderer, journal: Journal, request_timeout_seconds: float) -> None:
        self._engine = engine
        self._renderer = renderer
        self._journal = journal
        self._timeout_seconds = request_timeout_seconds
        self._sessions: dict[str, LiveSession] = {}

    async def recover(self) -> None:
        """Take up the sessions that the journal holds."""
        for session_id in await self._journal.session_ids():
            events = await self._journal.read(session_id)
            if not events or not isinstance(events[0], Opened):
                await self._journal.remove(session_id)  # cut within its first record, so never acknowledged
                continue
            session = Session(events[0])
            for event in events[1:]:
                session.apply(event)
            self._sessions[session_id] = LiveSession(session, self._journal, is_written=True)

    async def open(self, spec: SessionSpec) -> None:
        """Open a session; the same again changes nothing, a different one is a SessionConflict."""
        opened = Opened(spec=spec, at=time.time())
        live = self._sessions.setdefault(spec.session_id, LiveSession(Session(opened), self._journal))
        if live.session.spec != spec:
            raise SessionConflict(
                f"session {spec.session_id} is open with another specification: seal or drop it first"
            )
        try:
            await live.open(opened)
        except JournalError:
            self._sessions.pop(spec.session_id, None)
            raise

    async def seal(self, session_id: str) -> SealedSession:
        """End a session: abort what is under way, keep what it sampled, and give the result."""
        live = self._live(session_id)
        live.closing = True
        async with live.seal_lock:
            if live.session.sealed is None:
                await live.end_generations()
                await live.seal(time.time())
        sealed = live.session.sealed
        if sealed is None:
            raise JournalError(f"session {session_id} was not sealed: seal it again")
        return sealed

    def sealed(self, session_id: str) -> SealedSession | None:
        """The result of a sealed session, None while it is open."""
        return self._live(session_id).session.sealed

    async def drop(self, session_id: str) -> None:
        """Forget a session and its journal; harmless if there is none."""
        live = self._sessions.get(session_id)
        if live is not None:
            live.closing = True
            await live.end_generations()
            self._sessions.pop(session_id, None)
        await self._journal.remove(session_id)

    async def stop(self) -> None:
        """Abort everything under way; sessions stay as they are."""
        for live in self._sessions.values():
            live.closing = True
            await live.end_generations()

    def describe(self, session_id: str) -> str:
        """The session's token graph for a human."""
        return self._live(session_id).session.graph.describe()

    def model(self, session_id: str) -> str:
        """The name of the session's model."""
        return self._live(session_id).session.spec.model

    @asynccontextmanager
    async def call(self, session_id: str, arrival: Arrival, request: CallRequest) -> AsyncIterator[CallReply]:
        """The reply to a request. Leaving the block without an error says that the client received it."""
        live = self._live(session_id)
        call = self._admit(live, arrival, request)
        call.waiting += 1
        received = False
        try:
            await self._wait_for_answer(live, call)
            if not call.delivered and live.session.phase is Phase.OPEN:
                await live.record(Delivered(call=call.number, delivered=True))
            yield self._reply(live, call, request)
            received = call.received = True
        finally:
            call.waiting -= 1
            lost = not received and call.delivered and not call.received and not call.waiting
            if lost and live.session.phase is Phase.OPEN:
                live.chore(Delivered(call=call.number, delivered=False))

    def _live(self, session_id: str) -> LiveSession:
        live = self._sessions.get(session_id)
        if live is None:
            raise UnknownSession(f"no session {session_id!r} is open here")
        return live

    def _admit(self, live: LiveSession, arrival: Arrival, request: CallRequest) -> Call:
        session = live.session
        retried = session.find_retried(arrival)
        if retried is not None:
            return retried
        if live.closing or session.phase is not Phase.OPEN:
            raise SessionSealed(f"session {session.spec.session_id} is sealed: open another one")
        plan = plan_call(session, self._renderer, request)
        try:
            sampling = session.admit_call(plan, request.max_tokens, self._renderer.stop_token_ids)
        except ContextOverflow:
            if not session.overflowed:
                live.chore(Overflowed())
            raise
        return self._start(live, arrival, request, plan, sampling)

    def _start(
        self, live: LiveSession, arrival: Arrival, request: CallRequest, plan: Plan, sampling: CallSampling
    ) -> Call:
        session = live.session
        number = len(session.calls)
        started = Started(
            call=number,
            body_digest=arrival.body_digest,
            idempotency_key=arrival.idempotency_key,
            overridden=_overridden(session.spec, request),
            supersedes=session.find_superseded(arrival),
        )
        call = live.start(started)
        task = asyncio.create_task(self._answer(live, call, request, plan, sampling))
        live.answers[number] = task
        task.add_done_callback(lambda _: live.answers.pop(number, None))
        return call

    async def _answer(
        self, live: LiveSession, call: Call, request: CallRequest, plan: Plan, sampling: CallSampling
    ) -> RequestRefused | None:
        draft = Draft()
        try:
            failure = await self._generate(live, call.number, plan, sampling, draft)
            return await self._commit(live, call, request, plan, draft, failure)
        except Exception as error:
            logger.exception("call %d of session %s broke", call.number, live.session.spec.session_id)
            live.session.apply(Failed(call=call.number))
            live.session.apply(Lost(reason=f"call {call.number}: {error}"))
            return GenerationFailed(f"the proxy could not record this call: {error}")

    async def _generate(
        self, live: LiveSession, number: int, plan: Plan, sampling: CallSampling, draft: Draft
    ) -> RequestRefused | None:
        """Fill the draft; gives why there is no whole reply, or None."""
        session_id = live.session.spec.session_id
        sealed = SessionSealed(f"session {session_id} was sealed while this was generated")
        if live.closing:
            return sealed
        request_id = f"{session_id}/{number}"
        prompt_ids = live.session.graph.prompt_ids(plan)
        task = asyncio.create_task(self._consume(prompt_ids, sampling, request_id, draft))
        live.generating[number] = task
        try:
            await asyncio.wait({task}, timeout=self._timeout_seconds)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                await self._engine.abort(request_id)
                return GenerationFailed(f"no reply within {self._timeout_seconds:g} s: raise request_timeout_seconds")
        finally:
            del live.generating[number]
        if task.cancelled():
            await self._engine.abort(request_id)
            return sealed
        error = task.exception()
        if error is not None and not isinstance(error, EngineError):
            logger.error("engine broke on %s", request_id, exc_info=error)
        if error is not None:
            return GenerationFailed(f"the engine failed: {error}")
        if not draft.has_tokens or draft.chunks[-1].finish in (None, "abort"):
            return GenerationFailed("the engine gave the generation up: ask again")
        return None

    async def _consume(self, prompt_ids: list[int], sampling: CallSampling, request_id: str, draft: Draft) -> None:
        async for chunk in self._engine.generate(prompt_ids, sampling, request_id):
            draft.chunks.append(chunk)

    async def _commit(
        self,
        live: LiveSession,
        call: Call,
        request: CallRequest,
        plan: Plan,
        draft: Draft,
        failure: RequestRefused | None,
    ) -> RequestRefused | None:
        if not draft.has_tokens:
            await live.record(Failed(call=call.number))
            return failure
        whole = failure is None
        event = draft.committed(call.number, plan, time.time(), whole and call.waiting > 0, whole)
        if whole:
            reply = self._renderer.parse(event.ids, request.callable_tools)
            keys = conversation_keys(request.messages, request.tools or None)
            update = {"state_key": extend_key(keys[-1], reply), "verbatim": verbatim_digest(reply)}
            event = event.model_copy(update=update)
        await live.record(event)
        return failure

    async def _wait_for_answer(self, live: LiveSession, call: Call) -> None:
        task = live.answers.get(call.number)
        failure = await asyncio.shield(task) if task is not None else None
        if failure is not None:
            raise failure
        if call.state is not CallState.ANSWERED:
            raise GenerationFailed("the generation that this request repeats failed: ask again")

    def _reply(self, live: LiveSession, call: Call, request: CallRequest) -> CallReply:
        if call.node is None:
            raise InvalidRequest("the call that this request repeats has no reply")
        graph, spec = live.session.graph, live.session.spec
        node = graph.nodes[call.node]
        message = self._renderer.parse(node.ids, request.callable_tools)
        name = hashlib.sha256(f"{spec.session_id}/{call.number}".encode()).hexdigest()[:32]
        calls = [replace(call, id="") for call in message.tool_calls]
        return CallReply(
            reply_id=name,
            created=int(call.at),
            model=spec.model,
            message=replace(message, tool_calls=tuple(calls)),
            finish=call.finish,
            stop_reason=call.stop_reason,
            prompt_ids=graph.path_ids(node.parent),
            completion_ids=node.ids,
            logprobs=node.logprobs,
        )


def _overridden(spec: SessionSpec, request: CallRequest) -> tuple[str, ...]:
    own = spec.sampling.model_dump()
    differing = [name for name, value in request.asked.items() if name != "max_tokens" and own.get(name) != value]
    cap = request.max_tokens
    return (*differing, *(["max_tokens"] if cap is not None and cap > spec.sampling.max_tokens else []))
