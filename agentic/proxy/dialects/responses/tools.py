"""Tools of the Responses API: what the model is shown of each, and how its calls look on the wire.

Functions are shown as they are, also those in a namespace, whose name then leads the function's. A custom (freeform)
tool is shown as a function with one text, `input`; its grammar goes into the description. Tools that OpenAI runs
itself, such as web_search, are left out and counted: nobody could answer a call of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...conversation import Json, ToolCall, arguments_value
from ..base import tool_call_id
from ..content import function_schema
from ..wire import write_json

INPUT = "input"
"""The only argument of a custom tool as the model is shown it."""


@dataclass(frozen=True, slots=True)
class WireTool:
    """How the client named a tool."""

    name: str
    namespace: str | None
    is_custom: bool


@dataclass(frozen=True, slots=True)
class ToolTable:
    """A request's tools."""

    shown: tuple[Json, ...]
    wire: Mapping[str, WireTool]
    """By the name that the model is shown."""
    left_out: tuple[str, ...]
    """Types of tools that the model is not shown."""

    def item(self, call: ToolCall, reply_id: str, index: int, status: str) -> Json:
        """The output item of a call."""
        tool = self.wire.get(call.name) or WireTool(call.name, None, is_custom=False)
        kind, prefix = ("custom_tool_call", "ctc") if tool.is_custom else ("function_call", "fc")
        item: Json = {
            "id": f"{prefix}_{reply_id}_{index}",
            "type": kind,
            "status": status,
            "call_id": tool_call_id("call_", reply_id, index),
            "name": tool.name,
        }
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        return item | ({"input": custom_input(call)} if tool.is_custom else {"arguments": call.arguments})

    def is_custom(self, name: str) -> bool:
        """Whether a call of this name is one of a custom tool."""
        return name in self.wire and self.wire[name].is_custom


def make_table(tools: Iterable[Json]) -> ToolTable:
    """The table of `tools` as they came."""
    shown: list[Json] = []
    wire: dict[str, WireTool] = {}
    left_out: list[str] = []
    for number, tool in enumerate(tools):
        place = f"tools.{number}"
        if tool.get("type") == "namespace":
            namespace, inner = str(tool.get("name")), [t for t in tool.get("tools") or () if isinstance(t, dict)]
        else:
            namespace, inner = None, [tool]
        for one in inner:
            schema = _schema(one, namespace, place)
            if schema is None:
                left_out.append(str(one.get("type")))
                continue
            shown.append(schema)
            wire[schema["function"]["name"]] = WireTool(one["name"], namespace, one["type"] == "custom")
    return ToolTable(tuple(shown), wire, tuple(left_out))


def shown_name(name: str, namespace: object) -> str:
    """The name that the model is shown."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def custom_arguments(text: str) -> str:
    """What a custom tool's input is as arguments."""
    return write_json({INPUT: text})


def custom_input(call: ToolCall) -> str:
    """A custom tool's input from the arguments that the model wrote."""
    value = arguments_value(call.arguments)
    found = value.get(INPUT) if isinstance(value, dict) else None
    return found if isinstance(found, str) else call.arguments


def _schema(tool: Json, namespace: str | None, place: str) -> Json | None:
    name = tool.get("name")
    full = shown_name(name, namespace) if isinstance(name, str) and name else name
    match tool.get("type"):
        case "function":
            return function_schema(full, tool.get("description"), tool.get("parameters"), place)
        case "custom":
            return function_schema(full, _custom_description(tool), _CUSTOM_PARAMETERS, place)
    return None


def _custom_description(tool: Json) -> str:
    text = str(tool.get("description") or "")
    form = tool.get("format")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return text
    return f"{text}\n\nThe input has to follow this {form.get('syntax')} grammar:\n{form.get('definition')}".strip()


_CUSTOM_PARAMETERS: Json = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": [INPUT],
}
