"""The proxy without HTTP: open, call, seal, drop. Runs the stages of a call around the pure session.

A call is admitted (is it a retry? which tokens are held, which are new? is there budget?), its intent is journalled, it
is generated, committed (journal first, then state) and replied. A generation belongs to its session, not to the client
that asked: if the client goes away it goes on for a grace, so that a retry gets it (invariant 5); then it is aborted,
and its tokens are kept with mask 0. Sealing aborts what is under way and keeps what it had sampled; nothing commits
afterwards (invariant 7).

All state of a session changes under its lock, in the order of its journal.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from .composing import Asked, as_stored, compose
from .conversation import Json, Message, extend_key, text_key, verbatim_digest
from .dialects.base import CallReply, CallRequest, ReplyHead
from .engines.base import Engine
from .errors import (
    CaptureUnavailable,
    ContextOverflow,
    GenerationFailed,
    InvalidRequest,
    JournalError,
    SessionSealed,
)
from .events import Committed, Delivered, Failed, Lost, Opened, Overflowed, Started
from .generating import Cut, Draft, Generating
from .graph import Plan
from .live import LiveSession, Running
from .metrics import ProxyMetrics
from .models import CallSampling, SessionSpec
from .planning import Planned, find, plan_rest, plan_whole
from .renderers.base import Renderer
from .reply import LiveReply, closed_draft, make_parser, shown_logprobs
from .session import Arrival, Call, CallState, Phase, reply_id
from .sessions import Sessions
from .settings import ProxySettings

logger = logging.getLogger(__name__)

LARGE_REQUEST_CHARACTERS = 20_000
"""New text from which a plan is made in a thread: below it, encoding takes 1.5 ms, or 6 ms where its words are new."""


class Gateway:
    """The calls of all sessions of one process."""

    def __init__(
        self, engine: Engine, renderer: Renderer, sessions: Sessions, settings: ProxySettings, metrics: ProxyMetrics
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._sessions = sessions
        self._settings = settings
        self._metrics = metrics

    @asynccontextmanager
    async def call(self, session_id: str, arrival: Arrival, request: CallRequest) -> AsyncIterator[LiveReply]:
        """The reply to a request. Leaving the block without an error says that the client received it."""
        live = await self._sessions.find(session_id)
        asked = compose(live.session, request)
        call = await self._join(live, arrival, asked)
        received = False
        try:
            yield self._live_reply(live, call, asked)
            received = call.received = True
        finally:
            self._leave(live, call)
            lost = not received and call.delivered and not call.received and not call.waiting
            if lost and live.session.phase is Phase.OPEN:
                live.chore(Delivered(call=call.number, delivered=False))

    async def count(self, session_id: str, request: CallRequest) -> int:
        """The tokens of a request's prompt, as they would be sent; starts nothing."""
        live = await self._sessions.find(session_id)
        return (await self._plan(live, compose(live.session, request).request)).plan.total

    async def opened(self, session_id: str) -> Opened:
        """How an open session was opened; raises what became of one that is not."""
        return (await self._sessions.find(session_id)).session.opened

    async def _join(self, live: LiveSession, arrival: Arrival, asked: Asked) -> Call:
        """The call that answers a request, with its client counted as waiting."""
        admission = asyncio.create_task(self._admit(live, arrival, asked))
        try:
            return await asyncio.shield(admission)
        except asyncio.CancelledError:

            def leave(done: asyncio.Task[Call]) -> None:
                if not done.cancelled() and done.exception() is None:
                    self._leave(live, done.result())

            admission.add_done_callback(leave)
            raise

    def _leave(self, live: LiveSession, call: Call) -> None:
        live.touch()
        live.leave(call, self._settings.abandon_grace_seconds)

    async def _admit(self, live: LiveSession, arrival: Arrival, asked: Asked) -> Call:
        live.touch()
        async with live.admission:
            _refuse_closing(live)
            retried = await _find_retried(live, arrival)
            _refuse_closing(live)
            if retried is not None:
                self._metrics.requests_joined += 1
                live.join(retried)
                return retried
            planned = await self._plan(live, asked.request)
            sampling = self._sampling(live, asked.request, planned.plan)
            call = await self._start(live, arrival, asked, planned, sampling)
            live.join(call)
            return call

    async def _plan(self, live: LiveSession, request: CallRequest) -> Planned:
        found = find(live.session, request, live.known)
        arguments = (live.session, self._renderer, request, found)
        if found.held is not None:
            planned = await _run_by_size(_text_size(request, found.held[0]), plan_rest, *arguments)
            if planned is not None:
                return planned
        return await _run_by_size(_text_size(request), plan_whole, *arguments)

    def _sampling(self, live: LiveSession, request: CallRequest, plan: Plan) -> CallSampling:
        constraint = request.constraint
        if request.forced_tools:
            forced = [tool for tool in request.tools if tool.get("function", {}).get("name") in request.forced_tools]
            constraint = self._renderer.tool_constraint(forced, request.parallel_calls) if forced else None
            if constraint is None:
                raise InvalidRequest(
                    "tool_choice: this model cannot be made to call a tool: use auto or none", "tool_choice"
                )
        stops = self._renderer.stop_token_ids
        try:
            return live.session.admit_call(plan, request.max_tokens, stops, constraint)
        except ContextOverflow:
            _note_overflow(live)
            raise

    async def _start(
        self, live: LiveSession, arrival: Arrival, asked: Asked, planned: Planned, sampling: CallSampling
    ) -> Call:
        session, request = live.session, asked.request
        number = len(session.calls)
        started = Started(
            call=number,
            body_digest=arrival.body_digest,
            idempotency_key=arrival.idempotency_key,
            overridden=_overridden(session.spec, request),
            supersedes=session.find_superseded(arrival),
            at=time.time(),
            constrained=sampling.constraint is not None,
        )
        try:
            await live.record(started, is_durable=False)
        except JournalError as error:
            raise CaptureUnavailable(f"this call cannot be recorded: {error}") from error
        if request.prompt is None:
            live.known.remember(request.messages, request.tools or None, planned.keys)
        call = session.calls[number]
        call.reserved_tokens = sampling.max_tokens
        self._generate(live, call, asked, planned, sampling)
        return call

    def _generate(self, live: LiveSession, call: Call, asked: Asked, planned: Planned, sampling: CallSampling) -> None:
        prompt_ids = live.session.graph.prompt_ids(planned.plan)
        generating = Generating(
            self._engine,
            self._sessions.gate,
            f"{live.session.spec.session_id}/{call.number}",
            prompt_ids,
            sampling,
            self._settings.request_timeout_seconds,
        )
        answer = asyncio.create_task(self._answer(live, call, asked, planned, generating))
        live.running[call.number] = Running(generating, answer)
        self._metrics.calls_started += 1
        self._metrics.calls_running += 1
        self._metrics.prompt_tokens += len(prompt_ids)
        self._metrics.prompt_tokens_encoded += len(planned.plan.context)

    async def _answer(
        self, live: LiveSession, call: Call, asked: Asked, planned: Planned, generating: Generating
    ) -> Cut | None:
        cut: Cut | None = None
        try:
            cut = await generating.run()
            if cut is None:
                cut = await self._commit(live, call, asked, planned, generating.draft)
            else:
                await self._commit_cut(live, call, planned, generating.draft, cut)
            return cut
        except Exception as error:
            logger.exception("call %d of session %s broke", call.number, live.session.spec.session_id)
            live.owe(Failed(call=call.number, cut="proxy"))
            live.owe(Lost(reason=f"call {call.number}: {type(error).__name__}"))
            call.state = CallState.FAILED
            cut = Cut("proxy", GenerationFailed(f"the proxy could not record this call: {type(error).__name__}"))
            return cut
        finally:
            del live.running[call.number]
            self._count_end(generating.draft, cut)

    async def _commit(self, live: LiveSession, call: Call, asked: Asked, planned: Planned, draft: Draft) -> Cut | None:
        """Record a whole reply; until that has worked nobody is told that it is whole."""
        reply = self._parse(draft.ids, asked.request)
        event = draft.committed(call.number, planned.plan, time.time(), call.waiting > 0, None)
        holding = _holding(asked, planned, reply, reply_id(live.session.spec.session_id, call.number))
        try:
            await live.record(event.model_copy(update=holding))
        except JournalError as error:
            _record_later(live, call, draft.committed(call.number, planned.plan, time.time(), False, "journal"))
            logger.error("call %d of session %s: %s", call.number, live.session.spec.session_id, error)
            return Cut("journal", CaptureUnavailable(f"this reply cannot be recorded: {error}"))
        live.running[call.number].message = reply
        if planned.keys:
            request, keys = asked.request, [*planned.keys, holding["state_key"]]
            live.known.remember((*request.messages, reply), request.tools or None, keys)
        return None

    @staticmethod
    async def _commit_cut(live: LiveSession, call: Call, planned: Planned, draft: Draft, cut: Cut) -> None:
        """Record what came of a generation that has no whole reply."""
        if isinstance(cut.refusal, ContextOverflow):
            _note_overflow(live)
        event: Committed | Failed = Failed(call=call.number, cut=cut.word)
        if draft.ids:
            event = draft.committed(call.number, planned.plan, time.time(), False, cut.word)
        try:
            await live.record(event)
        except JournalError as error:
            _record_later(live, call, event)
            logger.error("call %d of session %s: %s", call.number, live.session.spec.session_id, error)

    def _live_reply(self, live: LiveSession, call: Call, asked: Asked) -> LiveReply:
        session, request = live.session, asked.request
        running = live.running.get(call.number)
        if running is not None:
            prompt_ids: Sequence[int] = running.generating.prompt_ids
            draft = running.generating.draft
        elif call.node is not None and call.state is CallState.ANSWERED:
            node = session.graph.nodes[call.node]
            prompt_ids = session.graph.path_ids(node.parent)
            draft = closed_draft(node.ids, node.logprobs, call.finish, call.stop_reason)
        else:
            prompt_ids, draft = (), closed_draft((), (), "", None)
        name = reply_id(session.spec.session_id, call.number)
        head = ReplyHead(name, int(call.at), session.spec.model, prompt_ids)

        async def result() -> CallReply:
            await self._wait_until_committed(live, call, running)
            message = running.message if running is not None else None
            return _reply(head, call, draft, message or self._parse(draft.ids, request))

        return LiveReply(head, result, draft, make_parser(self._renderer, request))

    @staticmethod
    async def _wait_until_committed(live: LiveSession, call: Call, running: Running | None) -> None:
        cut = await asyncio.shield(running.answer) if running is not None else None
        if cut is not None:
            raise cut.refusal
        if call.state is not CallState.ANSWERED:
            raise GenerationFailed("the generation that this request repeats failed: ask again")
        if call.delivered or live.session.phase is not Phase.OPEN:
            return
        try:
            await live.record(Delivered(call=call.number, delivered=True))
        except JournalError as error:
            raise CaptureUnavailable(f"this reply cannot be recorded: {error}") from error

    def _parse(self, ids: Sequence[int], request: CallRequest) -> Message:
        if request.prompt is not None:
            return Message("assistant", self._renderer.decode(ids))
        message = self._renderer.parse(ids, request.callable_tools)
        shown = message.tool_calls if request.parallel_calls else message.tool_calls[:1]
        return replace(message, tool_calls=tuple(replace(call, id="") for call in shown))

    def _count_end(self, draft: Draft, cut: Cut | None) -> None:
        metrics = self._metrics
        metrics.calls_running -= 1
        metrics.sampled_tokens += len(draft.ids)
        metrics.calls_answered += cut is None
        metrics.calls_cut += cut is not None
        metrics.calls_abandoned += cut is not None and cut.word == "abandoned"
        metrics.calls_refused += cut is not None and cut.word == "refused"


async def _run_by_size[**Arguments, Result](
    characters: int, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    """Off the event loop what encodes much text; a thread costs more than little text does."""
    if characters < LARGE_REQUEST_CHARACTERS:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _text_size(request: CallRequest, first: int = 0) -> int:
    """Characters from this message on, or of the prompt."""
    return sum(len(message.content) for message in request.messages[first:]) + len(request.prompt or "")


def _refuse_closing(live: LiveSession) -> None:
    """A retry is refused too: whether its reply could still be given would depend on what keeps sealed sessions."""
    if live.closing or live.session.phase is not Phase.OPEN:
        raise SessionSealed(f"session {live.session.spec.session_id} is sealed: open another one")


async def _find_retried(live: LiveSession, arrival: Arrival) -> Call | None:
    """The call that a request repeats; one that is being aborted already is waited for, and is none."""
    while (call := live.session.find_retried(arrival)) is not None:
        running = live.running.get(call.number)
        if running is None or not running.generating.is_stopping:
            return call
        await asyncio.wait({running.answer})
    return None


def _holding(asked: Asked, planned: Planned, reply: Message, name: str) -> Json:
    """Under what a later request finds the reply."""
    request = asked.request
    holding: Json = {}
    if request.prompt is None:
        holding = {"state_key": extend_key(planned.keys[-1], reply), "verbatim": verbatim_digest(reply)}
    elif isinstance(request.prompt, str):
        holding = {"state_key": text_key(request.prompt + reply.content), "verbatim": ""}
    if request.is_stored:
        holding |= {"messages": (*asked.own_messages, as_stored(reply, name)), "continues": asked.continues}
    return holding


def _record_later(live: LiveSession, call: Call, event: Committed | Failed) -> None:
    live.owe(event)
    call.state = CallState.FAILED


def _note_overflow(live: LiveSession) -> None:
    if not live.session.overflowed:
        live.chore(Overflowed())


def _reply(head: ReplyHead, call: Call, draft: Draft, message: Message) -> CallReply:
    return CallReply(
        reply_id=head.reply_id,
        created=head.created,
        model=head.model,
        message=message,
        finish=call.finish,
        stop_reason=call.stop_reason,
        prompt_ids=head.prompt_ids,
        completion_ids=draft.ids,
        logprobs=shown_logprobs(draft.logprobs, len(draft.ids)),
    )


def _overridden(spec: SessionSpec, request: CallRequest) -> tuple[str, ...]:
    own = spec.sampling.model_dump()
    differing = [name for name, value in request.asked.items() if name != "max_tokens" and own.get(name) != value]
    cap = request.max_tokens
    return (*differing, *(["max_tokens"] if cap is not None and cap > spec.sampling.max_tokens else []))
