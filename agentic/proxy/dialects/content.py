"""What all dialects share on the way in: parts of text, tool schemas, and the one normal form of a conversation.

The normal form is why a conversation that changes its API still finds the tokens held: `developer` is `system`, system
messages at the start are one, a tool's result is named by the call that it answers, and a tool's schema has the same
keys in the same order whatever API it came by.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..conversation import Json, Message, ToolCall
from ..errors import InvalidRequest
from .wire import read_arguments, write_json

TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Types of parts that are text, with the field that holds it."""

SEAL = "agentic1:"
"""Beginning of what stands for thinking that a client carries without reading it: base64 of the text follows."""


def seal_thinking(text: str) -> str:
    """Thinking as a client carries it."""
    return SEAL + base64.b64encode(text.encode("utf-8", "replace")).decode()


def unseal_thinking(sealed: object) -> str:
    """The thinking again; empty if the proxy did not seal it."""
    if not isinstance(sealed, str) or not sealed.startswith(SEAL):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(SEAL), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def join_parts(place: str, content: object, separator: str = "\n") -> str:
    """The text of a content field, parts joined; refuses by name what a text model cannot be shown."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequest(f"{place}: {type(content).__name__} is not content: send text or a list of parts", place)
    return separator.join(_part_text(place, part) for part in content)


def refused_part(place: str, kind: object) -> InvalidRequest:
    """The refusal of a part that is no text."""
    shown = kind if isinstance(kind, str) else "unknown"
    return InvalidRequest(
        f"{place}: a part of type {shown[:40]!r} is not supported, the model reads text: send text", place
    )


def function_schema(name: object, description: object, parameters: object, place: str) -> Json:
    """A tool as the model is shown it: OpenAI's form, always the same keys in the same order."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{place}: a tool needs a name: give it one", place)
    function: Json = {"name": name}
    if isinstance(description, str) and description:
        function["description"] = description
    if isinstance(parameters, dict):
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_call(call_id: object, name: str, arguments: object) -> ToolCall:
    """A call that a client gives back; arguments as it wrote them, or as JSON text if it sent an object."""
    if not isinstance(arguments, str):
        text = write_json(arguments if isinstance(arguments, dict) else {})
    elif "\\ud" in arguments.lower():
        value = read_arguments(arguments)
        text = arguments if value is None else write_json(value)
    else:
        text = arguments
    return ToolCall(call_id if isinstance(call_id, str) else "", name, text)


def normal_form(messages: Iterable[Message], lead: int = 0) -> tuple[Message, ...]:
    """The conversation in the form that all dialects share; the first `lead` messages stay on their own."""
    names: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls if call.id}
        found.append(_normal_message(message, names))
    end = next((number for number, message in enumerate(found) if message.role != "system"), len(found))
    if end - lead > 1:
        text = "\n\n".join(message.content for message in found[lead:end])
        return (*found[:lead], Message("system", text), *found[end:])
    return tuple(found)


def left_out(kinds: Iterable[str]) -> dict[str, object]:
    """How tools that the model is not shown are counted."""
    return {f"tools.{kind[:40]}": "left out" for kind in kinds}


def _normal_message(message: Message, names: Mapping[str, str]) -> Message:
    if message.role == "developer":
        return replace(message, role="system")
    if message.role == "tool" and message.tool_call_id is not None:
        return replace(message, name=names.get(message.tool_call_id, message.name))
    return message


def _part_text(place: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise InvalidRequest(f"{place}: {type(part).__name__} is not a part: send an object with a type", place)
    kind = part.get("type")
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
    if not isinstance(text, str):
        raise refused_part(place, kind)
    return text
