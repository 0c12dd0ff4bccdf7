"""Tool calls in the hermes form: `<tool_call>` around a JSON object with name and arguments, after optional text."""

import json
import re
from collections.abc import Callable

from ..conversation import Message, ToolCall

OPENING = "<tool_call>"
BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def parse_reply(text: str, make_id: Callable[[int], str]) -> Message:
    """The assistant message; if any call is malformed or unclosed, all of the text stays text."""
    start = text.find(OPENING)
    if start < 0:
        return Message("assistant", text)
    blocks = BLOCK.findall(text, start)
    calls = [_parse_call(block, make_id(number)) for number, block in enumerate(blocks)]
    good = [call for call in calls if call is not None]
    if len(good) != text.count(OPENING):
        return Message("assistant", text)
    return Message("assistant", text[:start], tool_calls=tuple(good))


def _parse_call(block: str, call_id: str) -> ToolCall | None:
    try:
        value = json.loads(block)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return ToolCall(call_id, value["name"], json.dumps(arguments, ensure_ascii=False))
