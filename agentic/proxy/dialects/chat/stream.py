"""Chat completions on the way out, streamed: chat.completion.chunk events as vLLM sends them."""

from collections.abc import Iterable

from ...conversation import CallArguments, CallStart, Json, ReasoningDelta, ReplyDelta, TextDelta, ToolCall
from ...errors import RequestRefused
from ..base import CallReply, DeltaChunk, ReplyHead, TokenText
from ..openai import DONE, data_event, error_body, reply_usage, token_logprobs, usage
from .reply import finish_reason, shown_call
from .request import ChatRequest, StreamOptions


class ChatWriter:
    """Streams one reply."""

    def __init__(self, request: ChatRequest, head: ReplyHead, token_text: TokenText) -> None:
        self._request = request
        self._options = request.stream_options or StreamOptions()
        self._token_text = token_text
        self._head = head
        self._sampled = 0
        self._fields = {
            "id": f"chatcmpl-{head.reply_id}",
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }

    def begin(self) -> Iterable[str]:
        """The role, and the prompt's ids if asked for."""
        extra = {"prompt_token_ids": list(self._head.prompt_ids)} if self._request.return_token_ids else {}
        yield self._event(_choice({"role": "assistant", "content": ""}), extra)

    def delta(self, chunk: DeltaChunk) -> Iterable[str]:
        """One event for each delta; what was asked for of the tokens rides on the first."""
        self._sampled += len(chunk.ids)
        shown = [fields for delta in chunk.deltas if (fields := self._shown(delta)) is not None]
        tokens = self._tokens(chunk)
        for number, fields in enumerate(shown or ([{}] if tokens else [])):
            yield self._event(_choice(fields) | (tokens if number == 0 else {}))

    def end(self, reply: CallReply) -> Iterable[str]:
        """Why it ended, usage if asked for, and the end mark."""
        yield self._event(_choice({}) | {"finish_reason": finish_reason(reply), "stop_reason": reply.stop_reason})
        if self._options.include_usage:
            yield data_event(self._fields | {"choices": [], "usage": reply_usage(reply)})
        yield DONE

    def fail(self, error: RequestRefused) -> Iterable[str]:
        """The error as an event, as vLLM sends it."""
        yield data_event(error_body(error))
        yield DONE

    def _event(self, choice: Json, extra: Json | None = None) -> str:
        fields = self._fields | {"choices": [choice]} | (extra or {})
        if self._options.continuous_usage_stats:
            fields["usage"] = usage(len(self._head.prompt_ids), self._sampled)
        return data_event(fields)

    def _shown(self, delta: ReplyDelta) -> Json | None:
        """The delta of a choice, or None for a call that is not shown."""
        limit = self._request.shown_calls
        match delta:
            case TextDelta():
                return {"content": delta.text}
            case ReasoningDelta():
                return {"reasoning": delta.text}
            case CallStart() | CallArguments() if limit is not None and delta.index >= limit:
                return None
            case CallStart():
                call = shown_call(ToolCall("", delta.name, ""), self._head.reply_id, delta.index)
                return {"tool_calls": [{"index": delta.index} | call]}
            case CallArguments():
                return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}

    def _tokens(self, chunk: DeltaChunk) -> Json:
        fields: Json = {}
        if self._request.logprobs and chunk.ids:
            fields["logprobs"] = {"content": token_logprobs(chunk.ids, chunk.logprobs, self._token_text)}
        if self._request.return_token_ids and chunk.ids:
            fields["token_ids"] = list(chunk.ids)
        return fields


def _choice(delta: Json) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
