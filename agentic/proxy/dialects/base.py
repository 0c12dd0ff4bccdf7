"""What every API dialect translates to and from."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..conversation import Json, Message


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A request for one assistant turn, whatever API it came by."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    """Schemas that the model is shown."""
    may_call_tools: bool
    """Whether tool calls are looked for in the reply."""
    max_tokens: int | None
    """The client's own cap, if any."""
    asked: dict[str, object]
    """Sampling values that the client asked for; those that differ from the session's are counted as overridden."""

    @property
    def callable_tools(self) -> Sequence[Json] | None:
        """Tools that the reply may call, or None."""
        return self.tools if self.may_call_tools and self.tools else None


@dataclass(frozen=True, slots=True)
class CallReply:
    """One assistant turn, with everything that an API may show of it."""

    reply_id: str
    created: int
    model: str
    message: Message
    finish: str
    """stop or length."""
    stop_reason: int | str | None
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
