"""OpenAI chat completions: request to CallRequest, CallReply to the JSON that vLLM would send.

Fields and their nulls are those of vLLM 0.24 (invariant 11). What would change the sampled distribution or cut tokens
(stop strings, penalties, biases) is the session's business: it is taken off the request and counted. What a client
relies on and the proxy cannot do exactly is refused by name: several choices, forced tools, response formats,
prefilled turns, images.
"""

import json
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..conversation import Json, Message, ToolCall
from ..errors import InvalidRequest
from .base import CallReply, CallRequest

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


def reply_body(request: ChatRequest, reply: CallReply, token_text: Callable[[int], str]) -> Json:
    """The reply as one JSON object."""
    ids = request.return_token_ids
    message = {
        "role": "assistant",
        "content": _content(reply.message),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": _tool_calls(reply.message),
        "reasoning": reply.message.reasoning,
    }
    if not message["tool_calls"]:
        del message["tool_calls"]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(request, reply, token_text),
        "finish_reason": _finish_reason(reply),
        "stop_reason": reply.stop_reason,
        "token_ids": list(reply.completion_ids) if ids else None,
        "routed_experts": None,
    }
    return {
        "id": reply.reply_id,
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


def reply_events(request: ChatRequest, reply: CallReply, token_text: Callable[[int], str]) -> Iterator[str]:
    """The reply as server-sent events: role, text, tool calls, end, and usage if asked for."""
    head = {"id": reply.reply_id, "object": "chat.completion.chunk", "created": reply.created, "model": reply.model}
    opening: Json = {"role": "assistant", "content": ""}
    yield _event(head | {"choices": [_delta(opening)]})
    text = {"reasoning": reply.message.reasoning, "content": _content(reply.message)}
    shown = {name: value for name, value in text.items() if value}
    if shown or request.logprobs:
        yield _event(head | {"choices": [_delta(shown, _logprobs(request, reply, token_text))]})
    calls = _tool_calls(reply.message)
    if calls:
        numbered = [{"index": number} | call for number, call in enumerate(calls)]
        yield _event(head | {"choices": [_delta({"tool_calls": numbered})]})
    end = _delta({}) | {"finish_reason": _finish_reason(reply), "stop_reason": reply.stop_reason}
    if request.return_token_ids:
        end |= {"token_ids": list(reply.completion_ids)}
    yield _event(head | {"choices": [end]})
    if request.stream_options is not None and request.stream_options.include_usage:
        yield _event(head | {"choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


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


def _tool_calls(message: Message) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
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


def _logprobs(request: ChatRequest, reply: CallReply, token_text: Callable[[int], str]) -> Json | None:
    if not request.logprobs:
        return None
    content = []
    for token_id, logprob in zip(reply.completion_ids, reply.logprobs, strict=True):
        text = token_text(token_id)
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content}


def _delta(delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _event(payload: Json) -> str:
    return f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"
