"""What a client asks of sampling: values that are the session's to decide, and what a reply is held to.

Temperatures, penalties, stop strings and biases would change the distribution that was sampled from, or cut tokens
after sampling; they are taken off the request and counted where they differ from the session's. A response format or a
forced tool is a constraint that the engine applies while it samples, so it is passed on.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..conversation import Json
from ..errors import InvalidRequest
from .wire import Wire, read_arguments

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
    "use_beam_search": False,
    "length_penalty": 1,
}
"""Sampling values that no session has, with the value that changes nothing."""


class SamplingFields(Wire):
    """Sampling values as OpenAI and vLLM name them; only compared and counted, so their types do not matter."""

    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    repetition_penalty: Any = None
    seed: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    min_p: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    logit_bias: Any = None
    stop: Any = None
    stop_token_ids: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None

    def asked(self) -> dict[str, object]:
        """The values that were asked for, without those that change nothing."""
        values = {name: getattr(self, name) for name in SamplingFields.model_fields}
        return {name: value for name, value in values.items() if value is not None and not _is_neutral(name, value)}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a request says about calling tools."""

    may_call: bool = True
    forced: tuple[str, ...] = ()
    """Tools of which one has to be called; none means that the model is free."""
    asked: dict[str, object] = field(default_factory=dict)
    """A wish that is counted and not followed."""


def openai_tool_choice(choice: object, names: Sequence[str]) -> ToolChoice:
    """`tool_choice` of chat completions and of Responses; `names` are the tools that the model is shown."""
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice(may_call=False)
    if choice == "required":
        return force(names, names)
    if not isinstance(choice, dict):
        raise InvalidRequest("tool_choice: send auto, none, required or an object that names a tool", "tool_choice")
    kind = choice.get("type", "function")
    if kind == "allowed_tools":
        return _allowed_tools(choice.get("allowed_tools", choice), names)
    if kind in ("function", "custom"):
        return force([_named(choice)], names)
    return ToolChoice(asked={"tool_choice": str(kind)[:40]})


def force(wanted: Sequence[str], names: Sequence[str]) -> ToolChoice:
    """One of the tools `wanted` has to be called; each has to be one of `names`."""
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        named = f"tool {unknown[0][:80]!r} is not among the tools" if unknown else "a call is required without tools"
        raise InvalidRequest(f"tool_choice: {named}: send the tool's schema in tools", "tool_choice")
    return ToolChoice(forced=tuple(dict.fromkeys(wanted)))


def format_constraint(value: object, place: str) -> Json | None:
    """The constraint of a `response_format` (chat) or `text.format` (Responses)."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema", "grammar", "structural_tag"):
        raise InvalidRequest(f"{place}: type has to be text, json_object or json_schema", place)
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        named = value.get("json_schema", value)
        return {"json": _object(named.get("schema") if isinstance(named, dict) else None, f"{place}.schema")}
    if kind == "structural_tag":
        return {"structural_tag": json.dumps(value)}
    return {"grammar": _text(value.get("grammar", value.get("definition")), f"{place}.grammar")}


def structured_constraint(value: object) -> Json | None:
    """The constraint of vLLM's own `structured_outputs`."""
    if value is None:
        return None
    given = {name: v for name, v in value.items() if v is not None} if isinstance(value, dict) else {}
    kinds = [kind for kind in ("json", "regex", "choice", "grammar", "json_object", "structural_tag") if kind in given]
    if len(kinds) != 1:
        raise InvalidRequest("structured_outputs: give one of json, regex, choice and grammar", "structured_outputs")
    kind, wanted = kinds[0], given[kinds[0]]
    if kind == "choice":
        if not isinstance(wanted, list) or not wanted or not all(isinstance(one, str) for one in wanted):
            raise InvalidRequest("structured_outputs.choice: send a list of texts", "structured_outputs")
        return {"regex": "|".join(f"(?:{re.escape(one)})" for one in wanted)}
    if kind == "json":
        return {
            "json": _object(read_arguments(wanted) if isinstance(wanted, str) else wanted, "structured_outputs.json")
        }
    return {"json_object": True} if kind == "json_object" else {kind: _text(wanted, f"structured_outputs.{kind}")}


def _allowed_tools(value: object, names: Sequence[str]) -> ToolChoice:
    allowed = value if isinstance(value, dict) else {}
    wanted = [_named(tool) for tool in allowed.get("tools") or () if isinstance(tool, dict)]
    if allowed.get("mode") == "required":
        return force([name for name in wanted if name in names], names)
    return ToolChoice(asked={"tool_choice": "allowed_tools"})


def _named(choice: Mapping[str, Any]) -> str:
    inner = choice.get(str(choice.get("type", "function")))
    name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("tool_choice: name the tool to call", "tool_choice")
    return name


def _is_neutral(name: str, value: object) -> bool:
    return name in NEUTRAL and value == NEUTRAL[name]


def _object(value: object, place: str) -> Json:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{place}: send a JSON schema, an object", place)
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{place}: send text", place)
    return value
