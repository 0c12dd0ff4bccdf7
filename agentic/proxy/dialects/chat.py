"""OpenAI chat completions: request to CallRequest, CallReply to the JSON that vLLM would send.

Fields and their nulls are those of vLLM 0.24 (invariant 11). What would change the sampled distribution or cut tokens
(stop strings, penalties, biases) is the session's business: it is taken off the request and counted. What a client
relies on and the proxy cannot do exactly is refused by name: several choices, forced tools, response formats,
prefilled turns, images.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..conversation import CallArguments, CallStart, Json, Message, ReasoningDelta, ReplyDelta, TextDelta, ToolCall
from ..errors import InvalidRequest, RequestRefused
from .base import CallReply, CallRequest, DeltaChunk, ReplyHead, TokenText, tool_call_id

CALL_ID_PREFIX = "chatcmpl-tool-"

NEUTRAL: dict[str, object] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "min_p": 0,
    "min_tokens": 0,
    "ignore_eos": False,
    "logit_bias": {},
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "allowed_token_ids": [],
}
"""Sampling values that no session has, with the value that changes nothing."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Function(_Wire):
    name: str
    arguments: str | Json = "{}"


class _ToolCall(_Wire):
    id: str | None = None
    function: _Function


class _Message(_Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Json] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _StreamOptions(_Wire):
    include_usage: bool | None = False


class ChatRequest(_Wire):
    """The body of a chat completion request, as far as the proxy reads it."""

    messages: list[_Message] = Field(min_length=1)
    model: str | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    max_tokens: int | None = Field(None, gt=0)
    max_completion_tokens: int | None = Field(None, gt=0)
    n: int | None = 1
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    return_token_ids: bool | None = False
    response_format: Json | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False


def parse_body(body: bytes) -> ChatRequest:
    """The request, or InvalidRequest that names the first field at fault."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{place or 'body'}: {first['msg']}", place or None) from error
    _refuse_unsupported(request)
    return request


def to_call(request: ChatRequest) -> CallRequest:
    """What is asked for, free of the dialect."""
    caps = [cap for cap in (request.max_completion_tokens, request.max_tokens) if cap is not None]
    return CallRequest(
        messages=tuple(_to_message(number, message) for number, message in enumerate(request.messages)),
        tools=tuple(request.tools or ()),
        may_call_tools=request.tool_choice != "none",
        max_tokens=min(caps) if caps else None,
        asked=_asked(request, caps),
    )


def reply_body(request: ChatRequest, reply: CallReply, token_text: TokenText) -> Json:
    """The reply as one JSON object."""
    ids = request.return_token_ids
    logprobs = _logprobs(reply.completion_ids, reply.logprobs, token_text) if request.logprobs else None
    message = {
        "role": "assistant",
        "content": _content(reply.message),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": _tool_calls(reply),
        "reasoning": reply.message.reasoning,
    }
    if not message["tool_calls"]:
        del message["tool_calls"]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _finish_reason(reply),
        "stop_reason": reply.stop_reason,
        "token_ids": list(reply.completion_ids) if ids else None,
        "routed_experts": None,
    }
    return {
        "id": f"chatcmpl-{reply.reply_id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _usage(reply),
        "prompt_logprobs": None,
        "prompt_token_ids": list(reply.prompt_ids) if ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
    }


class ChatWriter:
    """Streams one reply as chat.completion.chunk events."""

    def __init__(self, request: ChatRequest, head: ReplyHead, token_text: TokenText) -> None:
        self._request = request
        self._token_text = token_text
        self._head = head
        self._fields = {
            "id": f"chatcmpl-{head.reply_id}",
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }

    def begin(self) -> Iterable[str]:
        """The role."""
        opening: Json = {"role": "assistant", "content": ""}
        yield self._event([_delta(opening)])

    def delta(self, chunk: DeltaChunk) -> Iterable[str]:
        """One event for each delta; logprobs, if asked for, ride on the first."""
        shown = [self._shown(delta) for delta in chunk.deltas]
        logprobs = self._logprobs(chunk)
        if logprobs is not None and not shown:
            shown = [{}]
        for number, fields in enumerate(shown):
            yield self._event([_delta(fields, logprobs if number == 0 else None)])

    def end(self, reply: CallReply) -> Iterable[str]:
        """Why it ended, usage if asked for, and the end mark."""
        end = _delta({}) | {"finish_reason": _finish_reason(reply), "stop_reason": reply.stop_reason}
        if self._request.return_token_ids:
            end |= {"token_ids": list(reply.completion_ids)}
        yield self._event([end])
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield _event(self._fields | {"choices": [], "usage": _usage(reply)})
        yield "data: [DONE]\n\n"

    def fail(self, error: RequestRefused) -> Iterable[str]:
        """The error as an event, as vLLM sends it."""
        yield _event(error_body(error))
        yield "data: [DONE]\n\n"

    def _event(self, choices: list[Json]) -> str:
        return _event(self._fields | {"choices": choices})

    def _shown(self, delta: ReplyDelta) -> Json:
        match delta:
            case TextDelta():
                return {"content": delta.text}
            case ReasoningDelta():
                return {"reasoning": delta.text}
            case CallStart():
                call_id = tool_call_id(CALL_ID_PREFIX, self._head.reply_id, delta.index)
                function = {"name": delta.name, "arguments": ""}
                return {"tool_calls": [{"index": delta.index, "id": call_id, "type": "function", "function": function}]}
            case CallArguments():
                return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}

    def _logprobs(self, chunk: DeltaChunk) -> Json | None:
        if not self._request.logprobs or not chunk.ids:
            return None
        return _logprobs(chunk.ids, chunk.logprobs, self._token_text)


class ChatDialect:
    """The dialect of `/v1/chat/completions`."""

    name = "chat"
    path = "/chat/completions"
    count_path: str | None = None

    def parse(self, body: bytes) -> ChatRequest:
        """See parse_body."""
        return parse_body(body)

    def to_call(self, request: ChatRequest) -> CallRequest:
        """See to_call."""
        return to_call(request)

    def is_streamed(self, request: ChatRequest) -> bool:
        """`stream`."""
        return bool(request.stream)

    def reply_body(self, request: ChatRequest, reply: CallReply, token_text: TokenText) -> Json:
        """See reply_body."""
        return reply_body(request, reply, token_text)

    def writer(self, request: ChatRequest, head: ReplyHead, token_text: TokenText) -> ChatWriter:
        """A ChatWriter."""
        return ChatWriter(request, head, token_text)

    def count_body(self, tokens: int) -> Json:
        """In the words of usage."""
        return {"prompt_tokens": tokens}

    def error_body(self, error: RequestRefused) -> Json:
        """See error_body."""
        return error_body(error)


def error_body(error: RequestRefused) -> Json:
    """An error as OpenAI sends it."""
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}}


def _refuse_unsupported(request: ChatRequest) -> None:
    response_format = (request.response_format or {}).get("type", "text")
    refusals = [
        ("n", request.n not in (None, 1), "only n=1 is supported: send one request for each sample"),
        ("tool_choice", request.tool_choice not in (None, "auto", "none"), "only auto and none are supported"),
        ("response_format", response_format != "text", f"{response_format} is not supported: use text"),
        ("top_logprobs", bool(request.top_logprobs), "only 0 is supported"),
        ("continue_final_message", bool(request.continue_final_message), "is not supported"),
        ("add_generation_prompt", request.add_generation_prompt is False, "false is not supported"),
    ]
    for field, refused, reason in refusals:
        if refused:
            raise InvalidRequest(f"{field}: {reason}", field)


def _asked(request: ChatRequest, caps: list[int]) -> dict[str, object]:
    extra = request.model_extra or {}
    owned = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
    asked = {name: extra[name] for name in owned if extra.get(name) is not None}
    asked |= {name: extra[name] for name, neutral in NEUTRAL.items() if extra.get(name) not in (None, neutral)}
    if caps:
        asked["max_tokens"] = min(caps)
    return asked


def _to_message(number: int, message: _Message) -> Message:
    calls = []
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(call.id or "", call.function.name, text))
    return Message(
        role=message.role,
        content=_to_text(number, message.content),
        tool_calls=tuple(calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning or message.reasoning_content,
    )


def _to_text(number: int, content: str | list[Json] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for part in content:
        if part.get("type") not in ("text", "refusal") or not isinstance(part.get("text", part.get("refusal")), str):
            kind = part.get("type")
            raise InvalidRequest(
                f"messages.{number}.content: a part of type {kind!r} is not supported: send text", "messages"
            )
        parts.append(str(part.get("text", part.get("refusal"))))
    return "\n".join(parts)


def _content(message: Message) -> str | None:
    return (message.content or None) if message.tool_calls or message.reasoning else message.content


def _tool_calls(reply: CallReply) -> list[Json]:
    return [
        {
            "id": tool_call_id(CALL_ID_PREFIX, reply.reply_id, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.message.tool_calls)
    ]


def _finish_reason(reply: CallReply) -> str:
    return "tool_calls" if reply.message.tool_calls else reply.finish


def _usage(reply: CallReply) -> Json:
    prompt, completion = len(reply.prompt_ids), len(reply.completion_ids)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


def _logprobs(ids: Sequence[int], logprobs: Sequence[float], token_text: TokenText) -> Json:
    content = []
    for token_id, logprob in zip(ids, logprobs, strict=True):
        text = token_text(token_id)
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content}


def _delta(delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _event(payload: Json) -> str:
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"
