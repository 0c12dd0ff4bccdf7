"""How an engine is held to a tool call in the form that the model writes: a structural tag, or a JSON schema.

What the constraint lets through is what the reader of the form takes for a call; the schema of a tool's parameters is
its own, and `style` says to the engine's grammar that they are written as tags.
"""

import json
from collections.abc import Sequence

from ..conversation import Json
from .forms import ARGUMENT_TAGS, INVOKE, XML, AnyCallForm, CallForm, MarkedForm, TaggedForm

STYLES = {XML: "qwen_xml", ARGUMENT_TAGS: "glm_xml", INVOKE: "minimax_xml"}
"""What grammars call the forms of tags."""


def call_constraint(form: AnyCallForm, tools: Sequence[Json], parallel: bool) -> Json | None:
    """What holds a reply to calls of these tools, None if nothing can; see CallSampling.constraint."""
    functions = [tool["function"] for tool in tools]
    if not functions:
        return None
    if isinstance(form, CallForm) and form.closing is None:
        return None if parallel else _llama_constraint(functions)
    calls: Json = {
        "type": "tags_with_separator",
        "tags": [_call_tag(form, function) for function in functions],
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    if isinstance(form, MarkedForm) or form is INVOKE:
        gap = "\n" if form is INVOKE else ""
        calls = {"type": "tag", "begin": form.opening + gap, "content": calls, "end": f"{gap}{form.closing}"}
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": calls})}


def _call_tag(form: AnyCallForm, function: Json) -> Json:
    content: Json = {"type": "json_schema", "json_schema": _parameters(function)}
    name = function["name"]
    match form:
        case CallForm():
            begin, end = f'{form.opening}\n{{"name": {json.dumps(name)}, "arguments": ', f"}}\n{form.closing}"
        case TaggedForm():
            begin, end = _tagged_ends(form, name)
            content["style"] = STYLES[form]
        case MarkedForm():
            shown = f"functions.{name}:0" if form.has_ids else f"function{form.name_open}{name}"
            begin, end = f"{form.call_open}{shown}{form.name_end}", form.arguments_end
            end += "" if end == form.call_end else form.call_end
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _tagged_ends(form: TaggedForm, name: str) -> tuple[str, str]:
    if form.name_open is None:
        return f"{form.opening}{name}", form.closing
    begin, end = f"{form.name_open}{name}{form.name_end}\n", form.call_end or ""
    return (begin, end) if form is INVOKE else (f"{form.opening}\n{begin}", f"\n{end}\n{form.closing}")


def _llama_constraint(functions: Sequence[Json]) -> Json:
    shapes = [
        {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, "parameters": _parameters(function)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return {"json": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}


def _parameters(function: Json) -> Json:
    return function.get("parameters") or {"type": "object"}
