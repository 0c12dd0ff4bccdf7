"""Anthropic messages on the way out: the whole reply."""

from ...conversation import Json, ToolCall
from ..base import CallReply, tool_call_id
from ..content import seal_thinking
from ..wire import read_arguments
from .request import RAW_INPUT, MessagesRequest

CALL_ID_PREFIX = "toolu_"


def reply_body(request: MessagesRequest, reply: CallReply) -> Json:
    """The reply as one JSON object."""
    message = reply.message
    content: list[Json] = []
    if message.reasoning and request.shows_thinking:
        sealed = request.seals_thinking
        shown = "" if sealed else message.reasoning
        mark = signature(reply.reply_id, message.reasoning if sealed else None)
        content.append({"type": "thinking", "thinking": shown, "signature": mark})
    if message.content.strip():
        content.append({"type": "text", "text": message.content})
    for index, call in enumerate(message.tool_calls[: request.shown_calls]):
        content.append(call_block(call, reply.reply_id, index))
    head = message_head(reply.reply_id, reply.model, content)
    ending = {"stop_reason": stop_reason(reply), "stop_sequence": None}
    return head | ending | {"usage": usage(len(reply.prompt_ids), len(reply.completion_ids))}


def message_head(reply_id: str, model: str, content: list[Json]) -> Json:
    """The fields of a message that is not ended."""
    return {
        "id": f"msg_{reply_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def call_block(call: ToolCall, reply_id: str, index: int) -> Json:
    """One tool call; arguments that are no JSON object are wrapped, to be unwrapped when they come back."""
    value = read_arguments(call.arguments or "{}")
    return {
        "type": "tool_use",
        "id": tool_call_id(CALL_ID_PREFIX, reply_id, index),
        "name": call.name,
        "input": value if isinstance(value, dict) else {RAW_INPUT: call.arguments},
    }


def signature(reply_id: str, thinking: str | None) -> str:
    """What a client has to give back with a thinking block: the thinking itself, sealed, where it is not shown."""
    return f"agentic-{reply_id}" if thinking is None else seal_thinking(thinking)


def stop_reason(reply: CallReply) -> str:
    """Why the reply ended."""
    if reply.message.tool_calls:
        return "tool_use"
    return "max_tokens" if reply.finish == "length" else "end_turn"


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    """Tokens of a call; the proxy has no cache of its own to tell of."""
    return {
        "input_tokens": prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": completion_tokens,
        "service_tier": "standard",
    }
