"""What the proxy asks of a renderer: messages to token ids, ids to a message, and the step between two turns.

A renderer is built once for a model and has no state of a conversation. `render` and `bridge` are deterministic: equal
arguments give equal ids, and repeating a call is harmless. They raise InvalidRequest for messages that the template
refuses, and never block on I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..conversation import Json, Message, ReplyDelta, message_deltas


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """A conversation whose last message was sampled, so its tokens are held and must not be encoded again."""

    prompt_ids: Sequence[int]
    """All ids before the sampled turn."""
    completion_ids: Sequence[int]
    """The sampled turn, with the token that ended it, if one did."""
    messages: int
    """How many of the request's messages these tokens stand for; the last of them is the sampled one."""


class ReplyParser(Protocol):
    """Parses one sampled turn while it is sampled. Fed once, from the first id to the last.

    Invariant: all deltas put together (`join_deltas`) are what `Renderer.parse` gives for all ids, ids of calls apart.
    So nothing is given out that a later id can take back: a beginning that may become a tool call is held.
    """

    def feed(self, ids: Sequence[int]) -> list[ReplyDelta]:
        """What is certain after these ids too."""
        ...

    def finish(self) -> list[ReplyDelta]:
        """The rest, when sampling has ended; nothing is fed afterwards."""
        ...


class WholeReplyParser:
    """Gives everything at the end: right for every renderer, at the price of streaming."""

    def __init__(self, parse: Callable[[Sequence[int]], Message]) -> None:
        self._parse = parse
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> list[ReplyDelta]:
        """Keep the ids."""
        self._ids.extend(ids)
        return []

    def finish(self) -> list[ReplyDelta]:
        """Parse them."""
        return message_deltas(self._parse(self._ids))


class Renderer(Protocol):
    """Turns messages into ids and ids into messages for one model."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens at which sampling of a turn has to stop."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int]:
        """Ids of the whole conversation up to where the next assistant turn is sampled."""
        ...

    def bridge(self, held: HeldTurn, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int] | None:
        """Ids to append to the held ones so that the next assistant turn can be sampled.

        `messages` is the whole conversation; those after `held.messages` are new. None means that the template does not
        merely append here, so the caller has to render anew (a fork).
        """
        ...

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Json] | None) -> Message:
        """The assistant message that sampled ids stand for; tool calls are looked for only when there are tools."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as text, for clients that ask for logprobs."""
        ...

    def stream_parser(self, tools: Sequence[Json] | None) -> ReplyParser:
        """A parser of one turn as it is sampled, with `parse(ids, tools)` as its sum."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text completion's prompt, special tokens counting as such; no template."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Plain text of ids, without special tokens, thinking and calls left as they are written."""
        ...

    def text_parser(self) -> ReplyParser:
        """A parser that gives TextDelta only, with `decode(ids)` as its sum; for text completions."""
        ...

    def tool_constraint(self, tools: Sequence[Json], parallel: bool) -> Json | None:
        """What makes an engine answer by a call of one of these tools (several if `parallel`), as
        CallSampling.constraint; None if this model's form of calls cannot be forced."""
        ...
