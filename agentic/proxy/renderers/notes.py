"""System texts after the start of a conversation, for models that take them at the start only.

Agents put notes of the system among the messages ("this file changed on disk"). Some templates refuse such a message,
some leave it out without a word. Which of these a model does is found out once, by rendering one; then later system
texts are shown to it as the user's, in their place.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..conversation import Json, Message
from ..errors import InvalidRequest
from .base import HeldTurn, Renderer, ReplyParser

NOTE = "note"


def takes_notes(renderer: Renderer) -> bool:
    """Whether the model is shown a system text that comes after a user's."""
    try:
        ids = renderer.render([Message("system", "."), Message("user", "."), Message("system", NOTE)], None)
    except InvalidRequest:
        return False
    return NOTE in renderer.decode(ids)


class NotesAsUser:
    """Any renderer, with later system texts as the user's."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        """What renders the rest."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The renderer's."""
        return self.renderer.stop_token_ids

    def render(self, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int]:
        """Ids of the whole conversation."""
        return self.renderer.render(_shown(messages), tools)

    def bridge(self, held: HeldTurn, messages: Sequence[Message], tools: Sequence[Json] | None) -> list[int] | None:
        """Ids after the held ones; messages are exchanged one for one, so counts hold."""
        return self.renderer.bridge(held, _shown(messages), tools)

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Json] | None) -> Message:
        """The renderer's."""
        return self.renderer.parse(completion_ids, tools)

    def token_text(self, token_id: int) -> str:
        """The renderer's."""
        return self.renderer.token_text(token_id)

    def stream_parser(self, tools: Sequence[Json] | None) -> ReplyParser:
        """The renderer's."""
        return self.renderer.stream_parser(tools)

    def encode(self, text: str) -> list[int]:
        """The renderer's."""
        return self.renderer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The renderer's."""
        return self.renderer.decode(ids)

    def text_parser(self) -> ReplyParser:
        """The renderer's."""
        return self.renderer.text_parser()

    def tool_constraint(self, tools: Sequence[Json], parallel: bool) -> Json | None:
        """The renderer's."""
        return self.renderer.tool_constraint(tools, parallel)


def _shown(messages: Sequence[Message]) -> list[Message]:
    first = next((number for number, message in enumerate(messages) if message.role != "system"), len(messages))
    return [
        replace(message, role="user") if message.role == "system" and number > first else message
        for number, message in enumerate(messages)
    ]
