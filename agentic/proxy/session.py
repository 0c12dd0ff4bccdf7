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

from .conversation import Message, verbatim_digest
from .errors import CallLimitReached, ContextOverflow, InvalidRequest, JournalError, SessionSealed
from .events import Committed, Delivered, Event, Failed, Lost, Opened, Overflowed, Sealed, Started
from .graph import Generation, Plan, Relation, TokenGraph
from .models import CallSampling, SealedSession, SessionSpec


class Phase(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    SEALED = "sealed"


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
        self.phase = Phase.OPEN
        self.graph = TokenGraph()
        self.calls: dict[int, Call] = {}
        self.overflowed = False
        self.incomplete_reason: str | None = None
        self._overridden: Counter[str] = Counter()
        self._held: dict[str, list[tuple[str, int]]] = {}
        self._sealed: SealedSession | None = None

    @property
    def sealed(self) -> SealedSession | None:
        """The finished session, once it is."""
        return self._sealed

    def apply(self, event: Event) -> None:
        """Take in one event."""
        if self.phase is Phase.SEALED:
            raise JournalError(f"session {self.spec.session_id} is sealed: refuse {event.kind}")
        match event:
            case Started():
                self._start(event)
            case Committed():
                self._commit(event)
            case Delivered():
                self._deliver(event)
            case Failed():
                self.calls[event.call].state = CallState.FAILED
            case Overflowed():
                self.overflowed = True
            case Lost():
                self.incomplete_reason = self.incomplete_reason or event.reason
            case Sealed():
                self._seal(event)
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
        same = [call for call in self.calls.values() if call.body_digest == arrival.body_digest]
        alive = [call for call in same if call.state is not CallState.FAILED]
        abandoned = [call for call in alive if not call.waiting and not call.delivered]
        if abandoned:
            return abandoned[0]
        if arrival.retry_count < 1 or self.find_superseded(arrival) is not None:
            return None
        return alive[-1] if alive else None

    def find_superseded(self, arrival: Arrival) -> int | None:
        """The failed call that an SDK tries again by this request."""
        if arrival.retry_count < 1:
            return None
        for call in self.calls.values():
            failed = call.state is CallState.FAILED and not call.superseded
            if failed and call.body_digest == arrival.body_digest:
                return call.number
        return None

    def admit_call(self, plan: Plan, max_tokens: int | None, stop_token_ids: tuple[int, ...]) -> CallSampling:
        """How a planned call is sampled; refuses what does not fit into the session's budget."""
        if self.phase is not Phase.OPEN:
            raise SessionSealed(f"session {self.spec.session_id} is {self.phase}: open another one")
        if len(self.calls) >= self.spec.max_calls:
            raise CallLimitReached(f"all {self.spec.max_calls} calls of this session are used up")
        room = self._room(plan)
        limits = [self.spec.sampling.max_tokens, room, *([max_tokens] if max_tokens is not None else [])]
        fields = self.spec.sampling.model_dump() | {"max_tokens": min(limits), "stop_token_ids": stop_token_ids}
        return CallSampling(**fields)

    def seal(self, at: float) -> Sealed:
        """The event that ends the session as it stands."""
        return Sealed(at=at, digest=self._result("").digest)

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
        for call in self.calls.values():
            if call.idempotency_key == arrival.idempotency_key and call.state is not CallState.FAILED:
                if call.body_digest != arrival.body_digest:
                    raise InvalidRequest("this idempotency key was used with another body: use a new key")
                return call
        return None

    def _start(self, event: Started) -> None:
        self.calls[event.call] = Call(event.call, event.body_digest, event.idempotency_key)
        self._overridden.update(event.overridden)
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
        call.delivered, call.at = event.delivered, event.at
        call.finish, call.stop_reason = event.finish, event.stop_reason
        if event.state_key is not None:
            self._held.setdefault(event.state_key, []).append((event.verbatim or "", call.node))
        problem = generation.problem()
        if problem is not None:
            self.incomplete_reason = self.incomplete_reason or f"call {event.call}: {problem}"

    def _deliver(self, event: Delivered) -> None:
        call = self.calls[event.call]
        call.delivered = event.delivered
        if call.node is not None:
            self.graph.mark_delivered(call.node, event.delivered)

    def _seal(self, event: Sealed) -> None:
        result = self._result("")
        if result.digest != event.digest:
            raise JournalError(f"session {self.spec.session_id} does not have the digest it was sealed with")
        self._sealed = result
        self.phase = Phase.SEALED

    def _result(self, digest: str) -> SealedSession:
        sampled, undelivered = self.graph.count_sampled()
        complete = self.incomplete_reason is None
        result = SealedSession(
            session_id=self.spec.session_id,
            digest=digest,
            complete=complete,
            incomplete_reason=self.incomplete_reason,
            overflowed=self.overflowed,
            calls=len(self.calls),
            sampled_tokens=sampled,
            undelivered_tokens=undelivered,
            overridden=dict(sorted(self._overridden.items())),
            trajectories=self.graph.trajectories(with_loss=complete),
        )
        content = result.model_dump_json(exclude={"digest"})
        return result.model_copy(update={"digest": hashlib.sha256(content.encode()).hexdigest()})
