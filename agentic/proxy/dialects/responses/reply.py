"""The Responses API on the way out: the response object and its output items."""

from collections.abc import Sequence

from ...conversation import Json
from ..base import CallReply
from ..content import seal_thinking
from .request import ResponsesRequest


def reply_body(request: ResponsesRequest, reply: CallReply) -> Json:
    """The reply as one JSON object."""
    return response_object(request, reply.reply_id, reply.created, reply.model) | ending(
        reply, output_items(request, reply)
    )


def ending(reply: CallReply, output: Sequence[Json]) -> Json:
    """The fields that only a finished response has."""
    is_cut = reply.finish == "length"
    prompt, completion = len(reply.prompt_ids), len(reply.completion_ids)
    return {
        "status": "incomplete" if is_cut else "completed",
        "completed_at": None if is_cut else reply.created,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": list(output),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        },
    }


def output_items(request: ResponsesRequest, reply: CallReply) -> list[Json]:
    """Thinking, text and calls; of a reply that was cut, the last is incomplete."""
    message, items = reply.message, []
    calls = message.tool_calls[: request.shown_calls]
    if message.reasoning:
        items.append(reasoning_item(request, reply.reply_id, message.reasoning))
    if message.content.strip() or not message.tool_calls:
        items.append(message_item(reply.reply_id, 0, message.content, "completed"))
    items += [request.tools.item(call, reply.reply_id, index, "completed") for index, call in enumerate(calls)]
    return mark_cut(items, reply)


def mark_cut(items: list[Json], reply: CallReply) -> list[Json]:
    """The same items, the last one incomplete if the reply was cut."""
    if reply.finish != "length" or not items:
        return items
    return [*items[:-1], items[-1] | {"status": "incomplete"}]


def message_item(reply_id: str, number: int, text: str | None, status: str) -> Json:
    """The text of a turn; None means that none has come."""
    suffix = f"_{number}" if number else ""
    content = [] if text is None else [text_part(text)]
    return {
        "id": f"msg_{reply_id}{suffix}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text_part(text: str) -> Json:
    """The one part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_item(request: ResponsesRequest, reply_id: str, text: str | None) -> Json:
    """The thinking of a turn; None means that none has come."""
    sealed = seal_thinking(text) if text is not None and request.seals_thinking else None
    return {
        "id": f"rs_{reply_id}",
        "type": "reasoning",
        "status": "in_progress" if text is None else "completed",
        "summary": [],
        "content": [] if text is None else [{"type": "reasoning_text", "text": text}],
        "encrypted_content": sealed,
    }


def response_object(request: ResponsesRequest, reply_id: str, created: int, model: str) -> Json:
    """A response that has just begun; sampling values are the session's and not shown."""
    body = request.body
    text = body.text
    return {
        "id": f"resp_{reply_id}",
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None} | (body.reasoning or {}),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": None,
        "text": {"format": (text.format if text else None) or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
