"""The Responses API on the way out, streamed: output items that are added, grow and are done, numbered in sequence.

White space before a call makes no item, as in the whole reply. A custom tool's input comes in one piece: it lies inside
the JSON that the model writes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...conversation import CallArguments, CallStart, Json, ReasoningDelta, TextDelta, ToolCall
from ...errors import ContextOverflow, RequestRefused
from ..base import CallReply, DeltaChunk, ReplyHead
from ..openai import named_event
from .reply import ending, mark_cut, message_item, reasoning_item, response_object, text_part
from .request import ResponsesRequest


@dataclass(slots=True)
class _Open:
    """The item that grows."""

    kind: str
    """message, reasoning or call."""
    item: Json
    number: int = 0
    """Of a call: its number among the reply's calls. Of a message: how many came before it."""
    name: str = ""
    text: str = ""


class ResponsesWriter:
    """Streams one reply."""

    def __init__(self, request: ResponsesRequest, head: ReplyHead) -> None:
        self._request = request
        self._head = head
        self._response = response_object(request, head.reply_id, head.created, head.model)
        self._sequence = 0
        self._open: _Open | None = None
        self._done: list[Json] = []
        self._blank = ""
        self._messages = 0
        self._has_calls = False

    def begin(self) -> Iterable[str]:
        """The response without output."""
        yield self._event("response.created", {"response": self._response})
        yield self._event("response.in_progress", {"response": self._response})

    def delta(self, chunk: DeltaChunk) -> Iterable[str]:
        """Items, as far as the deltas go."""
        limit = self._request.shown_calls
        for delta in chunk.deltas:
            match delta:
                case TextDelta():
                    yield from self._text(delta.text)
                case ReasoningDelta():
                    yield from self._reasoning(delta.text)
                case CallStart():
                    self._has_calls = True
                    self._blank = ""
                    if limit is None or delta.index < limit:
                        yield from self._call(delta)
                case CallArguments() if limit is None or delta.index < limit:
                    yield from self._arguments(delta.text)

    def end(self, reply: CallReply) -> Iterable[str]:
        """The last item is done, then the response is."""
        if not self._messages and not self._has_calls:
            text, self._blank = self._blank, ""
            yield from self._message(text)
        yield from self._close(is_cut=reply.finish == "length")
        response = self._response | ending(reply, mark_cut(self._done, reply))
        yield self._event(f"response.{response['status']}", {"response": response})

    def fail(self, error: RequestRefused) -> Iterable[str]:
        """The response has failed."""
        code = error.code if isinstance(error, ContextOverflow) else "server_error"
        failed = {"status": "failed", "error": {"code": code, "message": str(error)}, "output": self._done}
        yield self._event("response.failed", {"response": self._response | failed})

    def _text(self, text: str) -> Iterator[str]:
        is_open = self._open is not None and self._open.kind == "message"
        if not is_open and not (self._blank + text).strip():
            self._blank += text
            return
        text, self._blank = self._blank + text, ""
        yield from self._message(text)

    def _message(self, text: str) -> Iterator[str]:
        if self._open is None or self._open.kind != "message":
            item = message_item(self._head.reply_id, self._messages, None, "in_progress")
            yield from self._add(_Open("message", item, self._messages))
            self._messages += 1
            yield self._event("response.content_part.added", self._place(0) | {"part": text_part("")})
        if text:
            yield self._grow("response.output_text.delta", text, self._place(0) | {"logprobs": []})

    def _reasoning(self, text: str) -> Iterator[str]:
        if self._open is None or self._open.kind != "reasoning":
            yield from self._add(_Open("reasoning", reasoning_item(self._request, self._head.reply_id, None)))
            part = {"type": "reasoning_text", "text": ""}
            yield self._event("response.content_part.added", self._place(0) | {"part": part})
        yield self._grow("response.reasoning_text.delta", text, self._place(0))

    def _call(self, delta: CallStart) -> Iterator[str]:
        call = ToolCall("", delta.name, "")
        item = self._request.tools.item(call, self._head.reply_id, delta.index, "in_progress")
        yield from self._add(_Open("call", item, delta.index, delta.name))

    def _arguments(self, text: str) -> Iterator[str]:
        if self._request.tools.is_custom(self._opened().name):
            self._opened().text += text
        else:
            yield self._grow("response.function_call_arguments.delta", text, self._place())

    def _add(self, opened: _Open) -> Iterator[str]:
        yield from self._close()
        self._open = opened
        yield self._event("response.output_item.added", {"output_index": len(self._done), "item": opened.item})

    def _close(self, is_cut: bool = False) -> Iterator[str]:
        if self._open is None:
            return
        opened, status = self._open, "incomplete" if is_cut else "completed"
        match opened.kind:
            case "message":
                item = message_item(self._head.reply_id, opened.number, opened.text, status)
                yield self._event("response.output_text.done", self._place(0) | {"text": opened.text, "logprobs": []})
                yield self._event("response.content_part.done", self._place(0) | {"part": item["content"][0]})
            case "reasoning":
                item = reasoning_item(self._request, self._head.reply_id, opened.text) | {"status": status}
                yield self._event("response.reasoning_text.done", self._place(0) | {"text": opened.text})
                yield self._event("response.content_part.done", self._place(0) | {"part": item["content"][0]})
            case _:
                call = ToolCall("", opened.name, opened.text)
                item = self._request.tools.item(call, self._head.reply_id, opened.number, status)
                yield from self._call_done(item)
        yield self._event("response.output_item.done", {"output_index": len(self._done), "item": item})
        self._done.append(item)
        self._open = None

    def _call_done(self, item: Json) -> Iterator[str]:
        if item["type"] == "custom_tool_call":
            yield self._event("response.custom_tool_call_input.delta", self._place() | {"delta": item["input"]})
            yield self._event("response.custom_tool_call_input.done", self._place() | {"input": item["input"]})
            return
        fields = {"name": item["name"], "arguments": item["arguments"]}
        yield self._event("response.function_call_arguments.done", self._place() | fields)

    def _grow(self, name: str, text: str, fields: Json) -> str:
        self._opened().text += text
        return self._event(name, fields | {"delta": text})

    def _place(self, content_index: int | None = None) -> Json:
        place: Json = {"item_id": self._opened().item["id"], "output_index": len(self._done)}
        return place if content_index is None else place | {"content_index": content_index}

    def _opened(self) -> _Open:
        if self._open is None:
            raise ValueError("a delta came for an item that was never added")
        return self._open

    def _event(self, name: str, fields: Json) -> str:
        number, self._sequence = self._sequence, self._sequence + 1
        return named_event(name, {"type": name, "sequence_number": number} | fields)
