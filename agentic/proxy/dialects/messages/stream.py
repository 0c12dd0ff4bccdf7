"""Anthropic messages on the way out, streamed: blocks that start, grow and stop, one at a time.

White space before a tool call makes no block: the API takes no text block without text, so nor does it give one.
"""

from collections.abc import Callable, Iterable, Iterator

from ...conversation import CallArguments, CallStart, Json, ReasoningDelta, TextDelta, ToolCall
from ...errors import RequestRefused
from ..base import CallReply, DeltaChunk, ReplyHead
from ..openai import named_event
from .reply import call_block, message_head, signature, stop_reason, usage
from .request import MessagesRequest


class MessagesWriter:
    """Streams one reply."""

    def __init__(self, request: MessagesRequest, head: ReplyHead, error_body: Callable[[RequestRefused], Json]) -> None:
        self._request = request
        self._head = head
        self._error_body = error_body
        self._index = -1
        self._open: str | None = None
        """Type of the block that has started and not stopped."""
        self._thinking = ""
        self._blank = ""
        """White space that came before any text of its block."""

    def begin(self) -> Iterable[str]:
        """The empty message, and a sign of life."""
        message = message_head(self._head.reply_id, self._head.model, [])
        yield _event("message_start", {"message": message | {"usage": usage(len(self._head.prompt_ids), 0)}})
        yield _event("ping", {})

    def delta(self, chunk: DeltaChunk) -> Iterable[str]:
        """Blocks, as far as the deltas go."""
        for delta in chunk.deltas:
            match delta:
                case TextDelta():
                    yield from self._text(delta.text)
                case ReasoningDelta() if self._request.shows_thinking:
                    yield from self._reasoning(delta.text)
                case CallStart() if self._is_shown(delta.index):
                    yield from self._call(delta)
                case CallArguments() if self._is_shown(delta.index):
                    yield self._delta({"type": "input_json_delta", "partial_json": delta.text})

    def end(self, reply: CallReply) -> Iterable[str]:
        """The last block stops, then the message."""
        yield from self._stop()
        ending = {"stop_reason": stop_reason(reply), "stop_sequence": None}
        counts = usage(len(reply.prompt_ids), len(reply.completion_ids))
        del counts["service_tier"]
        yield _event("message_delta", {"delta": ending, "usage": counts})
        yield _event("message_stop", {})

    def fail(self, error: RequestRefused) -> Iterable[str]:
        """The error as an event."""
        yield named_event("error", self._error_body(error))

    def _is_shown(self, index: int) -> bool:
        limit = self._request.shown_calls
        return limit is None or index < limit

    def _text(self, text: str) -> Iterator[str]:
        if self._open != "text" and not (self._blank + text).strip():
            self._blank += text
            return
        text, self._blank = self._blank + text, ""
        yield from self._open_block("text", {"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def _reasoning(self, text: str) -> Iterator[str]:
        self._thinking += text
        yield from self._open_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        if not self._request.seals_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def _open_block(self, kind: str, block: Json) -> Iterator[str]:
        if self._open != kind:
            yield from self._start(kind, block)

    def _call(self, delta: CallStart) -> Iterator[str]:
        self._blank = ""
        block = call_block(ToolCall("", delta.name, "{}"), self._head.reply_id, delta.index)
        yield from self._start("tool_use", block)

    def _start(self, kind: str, block: Json) -> Iterator[str]:
        yield from self._stop()
        self._index += 1
        self._open = kind
        yield _event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, delta: Json) -> str:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self) -> Iterator[str]:
        if self._open == "thinking":
            mark = signature(self._head.reply_id, self._thinking if self._request.seals_thinking else None)
            yield self._delta({"type": "signature_delta", "signature": mark})
        if self._open is not None:
            yield _event("content_block_stop", {"index": self._index})
        self._open = None


def _event(name: str, fields: Json) -> str:
    return named_event(name, {"type": name} | fields)
