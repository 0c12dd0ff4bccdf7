"""One session's state: phase, budget, calls with their retries, and the token graph.

Pure: state changes only by `apply(event)`, times come in with the events, and no client, task, clock or file is known
here. So replaying a journal gives the state that was, and the tests drive it without a server.

Invariants (numbers of docs/architecture.md):
5. A request that is a retry finds the call it repeats (`find_retried`); one call commits at most once.
7. After `Sealed` every event is refused; the digest is a function of what was captured.
8. A problem of capture makes the session incomplete, and an incomplete session trains nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .conversation import TEXT_KEY, Json, Message, text_key, verbatim_digest
from .errors import (
    CallLimitReached,
    ContextOverflow,
    InvalidRequest,
    JournalError,
    SessionSealed,
    TooManyCalls,
)
from .events import Committed, Delivered, Event, Failed, Lost, Opened, Overflowed, Sealed, Started
from .graph import Generation, Plan, Relation, TokenGraph
from .models import CallSampling, Ending, SealedSession, SessionSpec


class Phase(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    SEALED = "sealed"


EXCUSED_CUTS = frozenset({"engine", "restart", "proxy"})
"""Why a call failed and left no token on record, when it was not for anything that the client did."""


class CallState(StrEnum):
    """Where a call is."""

    RUNNING = "running"
    ANSWERED = "answered"
    FAILED = "failed"


@dataclass(slots=True)
class Call:
    """One generation and who asked for it."""

    number: int
    body_digest: str
    idempotency_key: str | None
    state: CallState = CallState.RUNNING
    waiting: int = 0
    """Clients connected and waiting for the reply."""
    delivered: bool = False
    """Whether a client is taken to have the reply: said before sending, taken back if sending fails."""
    received: bool = False
    """Whether sending the reply to some client has ended well."""
    superseded: bool = False
    """Whether a failed call has been tried again."""
    node: int | None = None
    finish: str = ""
    stop_reason: int | str | None = None
    at: float = 0.0
    """When it was started."""
    reserved_tokens: int = 0
    """What a running call may still sample."""
    messages: tuple[Message, ...] | None = None
    """What a later request may continue; see Committed."""
    continues: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What of a request decides whether it is a retry."""

    body_digest: str
    idempotency_key: str | None
    retry_count: int


class Session:
    """The fold of a session's events."""

    def __init__(self, opened: Opened) -> None:
        self.spec: SessionSpec = opened.spec
        self.opened = opened
        self.phase = Phase.OPEN
        self.graph = TokenGraph()
        self.calls: dict[int, Call] = {}
        self.overflowed = False
        self.incomplete_reason: str | None = None
        self._overridden: Counter[str] = Counter()
        self._constrained = 0
        self._held: dict[str, list[tuple[str, int]]] = {}
        self._text_lengths: Counter[int] = Counter()
        self._by_body: dict[str, list[Call]] = {}
        self._by_key: dict[str, list[Call]] = {}
        self._by_reply_id: dict[str, int] = {}
        self._cut: Counter[str] = Counter()
        self._sampled_tokens = 0
        self._excused = 0
        """Calls that failed by no doing of the client's."""
        self._running: set[int] = set()
        self._made: SealedSession | None = None
        """The result as sealing made it, until somebody takes it; what happens in between spoils it."""
        self.ending: Ending | None = None
        """How it ended, once it is sealed."""

    @property
    def sampled_tokens(self) -> int:
        """All tokens sampled so far."""
        return self._sampled_tokens

    def result(self) -> SealedSession:
        """The finished session. Made anew each time: a held one would cost several times the graph's memory."""
        if self.ending is None:
            raise JournalError(f"session {self.spec.session_id} is not sealed: seal it first")
        made, self._made = self._made, None
        return made or self._result(self.ending)

    def apply(self, event: Event) -> None:
        """Take in one event."""
        if self.phase is Phase.SEALED:
            raise JournalError(f"session {self.spec.session_id} is sealed: refuse {event.kind}")
        made, self._made = self._made, None
        match event:
            case Started():
                self._start(event)
            case Committed():
                self._commit(event)
            case Delivered():
                self._deliver(event)
            case Failed():
                self.calls[event.call].state = CallState.FAILED
                self._running.discard(event.call)
                self._cut[event.cut] += 1
                self._excused += event.cut in EXCUSED_CUTS
            case Overflowed():
                self.overflowed = True
            case Lost():
                self.incomplete_reason = self.incomplete_reason or event.reason
            case Sealed():
                self._seal(event, made)
            case Opened():
                raise JournalError(f"session {self.spec.session_id} is open already: drop it first")

    def find_held(self, keys: Sequence[str], messages: Sequence[Message]) -> tuple[int, int] | None:
        """The longest beginning of a request that is held: how many of its messages, and the sampled node.

        Of several samples with one key, the one that the client kept verbatim wins, then one that a client received,
        then the latest.
        """
        for count in range(len(keys), 0, -1):
            candidates = self._held.get(keys[count - 1])
            if candidates:
                own = verbatim_digest(messages[count - 1])
                ranked = [(kept == own, self.graph.nodes[node].delivered, node) for kept, node in candidates]
                return count, max(ranked)[2]
        return None

    def find_retried(self, arrival: Arrival) -> Call | None:
        """The call that this request repeats, or None if a generation has to be started."""
        if arrival.idempotency_key is not None:
            return self._find_by_key(arrival)
        same = self._by_body.get(arrival.body_digest, [])
        alive = [call for call in same if call.state is not CallState.FAILED]
        abandoned = [call for call in alive if not call.waiting and not call.delivered]
        if abandoned:
            return abandoned[0]
        if arrival.retry_count < 1 or self.find_superseded(arrival) is not None:
            return None
        return alive[-1] if alive else None

    def find_superseded(self, arrival: Arrival) -> int | None:
        """The failed call that is tried again by this request, be it by an SDK or by the agent's own loop."""
        for call in self._by_body.get(arrival.body_digest, []):
            if call.state is CallState.FAILED and not call.superseded:
                return call.number
        return None

    def find_text(self, prompt: str) -> tuple[int, int] | None:
        """The longest held text that a prompt begins with: its length, and the sampled node that it ends with."""
        lengths = list(self._text_lengths)  # a copy: long prompts are planned in a thread, beside calls that commit
        for length in sorted((held for held in lengths if held <= len(prompt)), reverse=True):
            candidates = self._held.get(text_key(prompt[:length]))
            if candidates:
                ranked = [(self.graph.nodes[node].delivered, node) for _, node in candidates]
                return length, max(ranked)[1]
        return None

    def find_stored(self, reply: str) -> int:
        """The call whose reply has this id, if a later request may continue it."""
        number = self._by_reply_id.get(reply)
        if number is None:
            raise InvalidRequest(
                f"no stored reply {reply!r} in this session: send the conversation instead", "previous_response_id"
            )
        return number

    def stored_reply(self, reply: str) -> Message:
        """The assistant turn of a stored reply."""
        number = self._by_reply_id.get(reply)
        messages = self.calls[number].messages if number is not None else None
        if not messages:
            raise InvalidRequest(f"Item of the reply {reply!r} not found: send the item itself", "input")
        return messages[-1]

    def conversation_of(self, call: int) -> tuple[Message, ...]:
        """The stored conversation up to and with a call's reply."""
        parts: list[tuple[Message, ...]] = []
        number: int | None = call
        while number is not None:
            held = self.calls[number]
            parts.append(held.messages or ())
            number = held.continues
        return tuple(message for part in reversed(parts) for message in part)

    def interrupted_calls(self) -> list[int]:
        """Calls without an end: after replaying a journal, those that the end of the process cut."""
        return [call.number for call in self.calls.values() if call.state is CallState.RUNNING]

    def admit_call(
        self,
        plan: Plan,
        max_tokens: int | None,
        stop_token_ids: tuple[int, ...],
        constraint: Json | None = None,
    ) -> CallSampling:
        """How a planned call is sampled; refuses what does not fit into the session's budget."""
        if self.phase is not Phase.OPEN:
            raise SessionSealed(f"session {self.spec.session_id} is {self.phase}: open another one")
        # As many may be excused as may be made: no client fills the journal by asking an engine that is down.
        if len(self.calls) - min(self._excused, self.spec.max_calls) >= self.spec.max_calls:
            raise CallLimitReached(f"all {self.spec.max_calls} calls of this session are used up")
        running = [self.calls[n] for n in self._running if self.calls[n].state is CallState.RUNNING]
        if self.spec.max_parallel_calls is not None and len(running) >= self.spec.max_parallel_calls:
            raise TooManyCalls(f"{len(running)} calls of this session run: wait for one of them")
        limits = [self.spec.sampling.max_tokens, self._room(plan), self._tokens_left(running)]
        limits += [max_tokens] if max_tokens is not None else []
        own = self.spec.sampling.model_dump()
        return CallSampling(
            **own | {"max_tokens": min(limits), "stop_token_ids": stop_token_ids, "constraint": constraint}
        )

    def seal(self, at: float, ending: Ending = "sealed") -> Sealed:
        """The event that ends the session as it stands."""
        self._made = self._result(ending)
        return Sealed(at=at, digest=self._made.digest, ending=ending)

    def _tokens_left(self, running: Sequence[Call]) -> int:
        limit = self.spec.max_sampled_tokens
        if limit is None:
            return self.spec.sampling.max_tokens
        left = limit - self._sampled_tokens - sum(call.reserved_tokens for call in running)
        if left < 1:
            raise CallLimitReached(f"all {limit} tokens that this session may sample are used up")
        return left

    def _room(self, plan: Plan) -> int:
        spec = self.spec
        if plan.first_prompt > spec.max_prompt_tokens:
            raise ContextOverflow(
                f"This model's maximum prompt length is {spec.max_prompt_tokens} tokens, but the messages have "
                f"{plan.first_prompt} tokens. Please reduce the length of the messages.",
                "messages",
            )
        room = spec.max_response_tokens - (plan.total - plan.first_prompt)
        if room < 1:
            limit = plan.first_prompt + spec.max_response_tokens
            raise ContextOverflow(
                f"This model's maximum context length is {limit} tokens, but the messages have {plan.total} tokens. "
                "Please reduce the length of the messages.",
                "messages",
            )
        return room

    def _find_by_key(self, arrival: Arrival) -> Call | None:
        for call in self._by_key.get(arrival.idempotency_key or "", []):
            if call.state is not CallState.FAILED:
                if call.body_digest != arrival.body_digest:
                    raise InvalidRequest("this idempotency key was used with another body: use a new key")
                return call
        return None

    def _start(self, event: Started) -> None:
        call = Call(event.call, event.body_digest, event.idempotency_key, at=event.at)
        self.calls[event.call] = call
        self._running.add(event.call)
        self._by_body.setdefault(event.body_digest, []).append(call)
        if event.idempotency_key is not None:
            self._by_key.setdefault(event.idempotency_key, []).append(call)
        self._overridden.update(event.overridden)
        self._constrained += event.constrained
        if event.supersedes is not None:
            self.calls[event.supersedes].superseded = True

    def _commit(self, event: Committed) -> None:
        call = self.calls[event.call]
        if call.node is not None:
            raise JournalError(f"call {event.call} of session {self.spec.session_id} has committed already")
        generation = Generation(event.ids, event.logprobs, event.versions)
        # Only the place counts here; whether it was an extension or a fork was the planner's business.
        plan = Plan(Relation.EXTEND, event.anchor, event.context, event.first_prompt, 0)
        call.node = self.graph.commit(plan, generation, event.delivered)
        call.state = CallState.ANSWERED if event.answered else CallState.FAILED
        self._running.discard(event.call)
        self._sampled_tokens += len(event.ids)
        call.delivered = event.delivered
        call.finish, call.stop_reason = event.finish, event.stop_reason
        if event.state_key is not None:
            self._hold(event.state_key, event.verbatim or "", call.node)
        if event.messages is not None:
            call.messages, call.continues = event.messages, event.continues
            self._by_reply_id[reply_id(self.spec.session_id, event.call)] = event.call
        if event.cut is not None:
            self._cut[event.cut] += 1
        problem = generation.problem()
        if problem is not None:
            self.incomplete_reason = self.incomplete_reason or f"call {event.call}: {problem}"

    def _hold(self, key: str, verbatim: str, node: int) -> None:
        self._held.setdefault(key, []).append((verbatim, node))
        if key.startswith(TEXT_KEY):
            self._text_lengths[int(key.split(":")[1])] += 1

    def _deliver(self, event: Delivered) -> None:
        call = self.calls[event.call]
        call.delivered = event.delivered
        if call.node is not None:
            self.graph.mark_delivered(call.node, event.delivered)

    def _seal(self, event: Sealed, made: SealedSession | None) -> None:
        result = made or self._result(event.ending)
        if result.digest != event.digest:
            raise JournalError(f"session {self.spec.session_id} does not have the digest it was sealed with")
        self._made = result
        self.ending = event.ending
        self.phase = Phase.SEALED

    def _result(self, ending: Ending) -> SealedSession:
        sampled, undelivered = self.graph.count_sampled()
        complete = self.incomplete_reason is None
        result = SealedSession(
            session_id=self.spec.session_id,
            digest="",
            complete=complete,
            incomplete_reason=self.incomplete_reason,
            overflowed=self.overflowed,
            calls=len(self.calls),
            sampled_tokens=sampled,
            undelivered_tokens=undelivered,
            overridden=dict(sorted(self._overridden.items())),
            constrained_calls=self._constrained,
            ending=ending,
            cut=dict(sorted(self._cut.items())),
            trajectories=self.graph.trajectories(with_loss=complete),
        )
        content = result.model_dump_json(exclude={"digest"})
        return result.model_copy(update={"digest": hashlib.sha256(content.encode()).hexdigest()})


def reply_id(session_id: str, call: int) -> str:
    """What a call's reply is named by: the same whenever it is asked for."""
    return hashlib.sha256(f"{session_id}/{call}".encode()).hexdigest()[:32]
