"""What every API dialect translates to and from, and what a dialect is.

A dialect owns the wire: it turns a body into a CallRequest, and a reply, whole or piece by piece, into its API's JSON.
It has no state of a session, does no I/O and never sees a key. Ids on the wire are made from `reply_id` (32 hexadecimal
digits, the same for a retry) by the dialect's own prefix, so a retried request gets the ids that it got before.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..conversation import Json, Message, ReplyDelta
from ..errors import RequestRefused

REFERENCE = "reference"
"""Role of a message that stands for the turn of an earlier reply of this session that was stored; its content is that
reply's `reply_id`."""

type TokenText = Callable[[int], str]
"""One token as text, special ones included."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A request for one assistant turn, whatever API it came by."""

    messages: tuple[Message, ...]
    """The conversation; empty for a text completion. With `continues`, what is new in it."""
    tools: tuple[Json, ...]
    """Schemas that the model is shown, in OpenAI's form `{"type": "function", "function": {...}}`."""
    may_call_tools: bool
    """Whether tool calls are looked for in the reply."""
    max_tokens: int | None
    """The client's own cap, if any."""
    asked: dict[str, object]
    """Sampling values that the client asked for; those that differ from the session's are counted as overridden."""
    constraint: Json | None = None
    """What the reply is held to, as in CallSampling.constraint; from response_format and its like."""
    forced_tools: tuple[str, ...] = ()
    """Names of tools of which the reply has to call one (tool_choice); the renderer makes the constraint."""
    parallel_calls: bool = True
    """Whether a reply may hold several calls; if not, the first counts, and a forced reply holds one."""
    prompt: str | tuple[int, ...] | None = None
    """A text completion's prompt; None for a conversation."""
    continues: str | None = None
    """`reply_id` of an earlier reply of this session that was stored; its conversation comes before `messages`."""
    lead: int = 0
    """How many of `messages` stand before the continued conversation and are not stored (instructions)."""
    is_stored: bool = False
    """Whether a later request may continue this reply by its id."""

    @property
    def callable_tools(self) -> Sequence[Json] | None:
        """Tools that the reply may call, or None."""
        return self.tools if self.may_call_tools and self.tools else None


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What is known of a reply before its first token."""

    reply_id: str
    """32 hexadecimal digits, without a prefix."""
    created: int
    """When the call was started, in unix seconds."""
    model: str
    prompt_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class CallReply:
    """One assistant turn, with everything that an API may show of it."""

    reply_id: str
    created: int
    model: str
    message: Message
    """Ids of its calls are empty: `tool_call_id` makes them."""
    finish: str
    """stop or length."""
    stop_reason: int | str | None
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class DeltaChunk:
    """What came of a reply since the last chunk.

    Over a reply, `ids` put together are its completion ids. Deltas may come later than the ids that they are parsed
    from, never earlier; a chunk may have ids and no deltas, or the other way round.
    """

    deltas: tuple[ReplyDelta, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class StreamWriter(Protocol):
    """Writes one streamed reply: begin, any number of chunks, then end or fail. Gives whole server-sent events."""

    def begin(self) -> Iterable[str]:
        """What comes before the first token; sent once the request is accepted."""
        ...

    def delta(self, chunk: DeltaChunk) -> Iterable[str]:
        """A piece of the reply."""
        ...

    def end(self, reply: CallReply) -> Iterable[str]:
        """The terminal events, after the reply is committed; all its deltas were given before."""
        ...

    def fail(self, error: RequestRefused) -> Iterable[str]:
        """The terminal events of a stream that broke after it began."""
        ...


class Dialect[Request](Protocol):
    """One API. `Request` is its checked body."""

    name: str
    """For logs and metrics: chat, responses, messages, completions."""
    path: str
    """Below /v1, such as `/chat/completions`."""
    count_path: str | None
    """Where the API counts a request's prompt tokens, if it does."""

    def parse(self, body: bytes) -> Request:
        """The request; InvalidRequest names the first field at fault. May be called off the event loop."""
        ...

    def to_call(self, request: Request) -> CallRequest:
        """What is asked for, free of the dialect."""
        ...

    def is_streamed(self, request: Request) -> bool:
        """Whether the reply is to come as server-sent events."""
        ...

    def reply_body(self, request: Request, reply: CallReply, token_text: TokenText) -> Json:
        """The reply as one JSON object."""
        ...

    def writer(self, request: Request, head: ReplyHead, token_text: TokenText) -> StreamWriter:
        """Writes the reply as it comes."""
        ...

    def count_body(self, tokens: int) -> Json:
        """The answer at `count_path`."""
        ...

    def error_body(self, error: RequestRefused) -> Json:
        """An error in the API's own form; its HTTP status is the error's."""
        ...


def tool_call_id(prefix: str, reply_id: str, index: int) -> str:
    """The id of a reply's call: the same each time it is asked for, unlike all others."""
    return f"{prefix}{reply_id[:24]}{index}"
