"""Chat completions on the way out: the whole reply, with the fields and nulls of vLLM 0.24 (invariant 11)."""

from ...conversation import Json, ToolCall
from ..base import CallReply, TokenText, tool_call_id
from ..openai import reply_usage, token_logprobs
from .request import ChatRequest

CALL_ID_PREFIX = "chatcmpl-tool-"


def reply_body(request: ChatRequest, reply: CallReply, token_text: TokenText) -> Json:
    """The reply as one JSON object."""
    ids = request.return_token_ids
    calls = reply.message.tool_calls[: request.shown_calls]
    message: Json = {
        "role": "assistant",
        "content": _content(reply),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [shown_call(call, reply.reply_id, index) for index, call in enumerate(calls)],
        "reasoning": reply.message.reasoning,
    }
    if not calls:
        del message["tool_calls"]
    logprobs: Json | None = None
    if request.logprobs:
        logprobs = {"content": token_logprobs(reply.completion_ids, reply.logprobs, token_text)}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(reply),
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
        "usage": reply_usage(reply),
        "prompt_logprobs": None,
        "prompt_token_ids": list(reply.prompt_ids) if ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
    }


def shown_call(call: ToolCall, reply_id: str, index: int) -> Json:
    """One tool call."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": tool_call_id(CALL_ID_PREFIX, reply_id, index), "type": "function", "function": function}


def finish_reason(reply: CallReply) -> str:
    """Why the reply ended."""
    return "tool_calls" if reply.message.tool_calls else reply.finish


def _content(reply: CallReply) -> str | None:
    message = reply.message
    return (message.content or None) if message.tool_calls or message.reasoning else message.content
