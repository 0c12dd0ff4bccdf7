"""How an engine is held to a tool call in the form that the model writes: a structural tag, or a JSON schema.

What the constraint lets through is what the reader of the form takes for a call; the schema of a tool's parameters is
its own, and `style` says to the engine's grammar that they are written as tags.
"""

import json
from collections.abc import Mapping, Sequence

from ..conversation import Json
from .forms import (
    ARGUMENT_TAGS,
    DSML,
    GEMMA,
    HUNYUAN,
    INVOKE,
    XML,
    AnyCallForm,
    CallForm,
    MarkedForm,
    MessageForm,
    QuotedForm,
    TaggedForm,
)

STYLES: Mapping[AnyCallForm, str] = {
    XML: "qwen_xml",
    ARGUMENT_TAGS: "glm_xml",
    INVOKE: "minimax_xml",
    DSML: "deepseek_xml",
    GEMMA: "gemma",
}
"""What grammars call the forms of arguments that are no JSON."""
SHARED_BLOCKS = (INVOKE, DSML, HUNYUAN)
"""Forms of tags in which several calls share a block."""


def call_constraint(form: AnyCallForm | MessageForm, tools: Sequence[Json], parallel: bool) -> Json | None:
    """What holds a reply to calls of these tools, None if nothing can; see CallSampling.constraint."""
    functions = [tool["function"] for tool in tools]
    if not functions:
        return None
    if isinstance(form, CallForm) and form.closing is None:
        return None if parallel else _llama_constraint(functions)
    calls: Json = {
        "type": "tags_with_separator",
        "tags": [_call_tag(form, function) for function in functions],
        "separator": _separator(form),
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    if isinstance(form, MarkedForm) or (isinstance(form, TaggedForm) and form in SHARED_BLOCKS):
        gap = "" if isinstance(form, MarkedForm) else "\n"
        calls = {"type": "tag", "begin": form.opening + gap, "content": calls, "end": f"{gap}{form.closing}"}
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": calls})}


def _separator(form: AnyCallForm | MessageForm) -> str:
    """What comes between two calls."""
    match form:
        case MessageForm():
            return form.start
        case QuotedForm():
            return ""
    return "\n"


def _call_tag(form: AnyCallForm | MessageForm, function: Json) -> Json:
    content: Json = {"type": "json_schema", "json_schema": _parameters(function)}
    name = function["name"]
    match form:
        case CallForm():
            begin, end = f'{form.opening}\n{{"name": {json.dumps(name)}, "arguments": ', f"}}\n{form.closing}"
        case TaggedForm():
            begin, end = _tagged_ends(form, name)
            content = content | {"style": STYLES[form]} if form in STYLES else _parameter_tags(form, function)
        case MarkedForm():
            shown = f"functions.{name}:0" if form.has_ids else f"function{form.name_open}{name}"
            begin, end = f"{form.call_open}{shown}{form.name_end}", form.arguments_end
            end += "" if end == form.call_end else form.call_end
        case QuotedForm():
            begin, end = f"{form.opening}{form.name_open}{name}", form.closing
            content["style"] = STYLES[form]
        case MessageForm():
            opening = f'{{"name":{json.dumps(name, ensure_ascii=False)},"{form.argument_key}":'
            begin, end = f"{name}{form.calls[0]}{opening}", f"}}{form.end}"
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _tagged_ends(form: TaggedForm, name: str) -> tuple[str, str]:
    if form.name_open is None:
        return f"{form.opening}{name}", form.closing
    begin, end = f"{form.name_open}{name}{form.name_end}\n", form.call_end or ""
    return (begin, end) if form in SHARED_BLOCKS else (f"{form.opening}\n{begin}", f"\n{end}\n{form.closing}")


def _parameter_tags(form: TaggedForm, function: Json) -> Json:
    """Parameters of a form that grammars have no style for, in the order of the schema."""
    schema = _parameters(function)
    required, shared = schema.get("required") or (), {key: schema[key] for key in ("$defs",) if key in schema}
    elements: list[Json] = [{"type": "const_string", "value": ""}]
    for key, own in (schema.get("properties") or {}).items():
        is_string = isinstance(own, dict) and own.get("type") in ("string", ["string"])
        value: Json = {"type": "any_text"} if is_string else {"type": "json_schema", "json_schema": own}
        if is_string and "enum" in own:
            value = {"type": "or", "elements": [{"type": "const_string", "value": text} for text in own["enum"]]}
        if not is_string and isinstance(own, dict):
            value["json_schema"] = own | shared
        begin = f"{form.key_open}{key}{form.key_end}\n{form.value_open}"
        tag = {"type": "tag", "begin": begin, "content": value, "end": f"{form.value_end}\n"}
        elements.append(tag if key in required else {"type": "optional", "content": tag})
    return {"type": "sequence", "elements": elements}


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
