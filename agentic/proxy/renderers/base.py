"""What the proxy asks of a renderer: messages to token ids, ids to a message, and the step between two turns.

A renderer is built once for a model and has no state of a conversation. `render` and `bridge` are deterministic: equal
arguments give equal ids, and repeating a call is harmless. They raise InvalidRequest for messages that the template
refuses, and never block on I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..conversation import Json, Message


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """A conversation whose last message was sampled, so its tokens are held and must not be encoded again."""

    prompt_ids: Sequence[int]
    """All ids before the sampled turn."""
    completion_ids: Sequence[int]
    """The sampled turn, with the token that ended it, if one did."""
    messages: int
    """How many of the request's messages these tokens stand for; the last of them is the sampled one."""


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
