"""Why a malformed reply is read differently by vLLM's parsers and by the library: rules, explained in
docs/proxy-parsers.md.

A rule looks at what both made of a reply, not at the reply alone, so that it explains only a difference of its kind.
The first that holds counts, so those that say most come first.
"""

import json
import re
from collections.abc import Callable
from typing import Any

type Reply = tuple[str, str, list[tuple[str, Any]]]
type Rule = Callable[[str, Reply, Reply], bool]

_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
OPEN = "no JSON: "
"""How arguments that are no JSON are told."""


def comparable(reply: Reply) -> Reply:
    """Without white space around text and values, and without the suffix that Hy3's markers have."""
    content, reasoning, calls = json.loads(json.dumps(reply).replace(":opensource", ""))
    return content.strip(), reasoning.strip(), [(name.strip(), _stripped(value)) for name, value in calls]


def _stripped(value: Any) -> Any:
    match value:
        case dict():
            return {key.strip(): _stripped(item) for key, item in value.items()}
        case str() if not value.startswith(OPEN):
            return value.strip()
        case str():
            return value.rstrip()
    return value


def _values(reply: Reply) -> list[Any]:
    return [value for _, value in reply[2]]


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(OPEN + "{")


def _hidden(ours: Reply, theirs: Reply) -> bool:
    """Whether they show less of the text."""
    return len(theirs[0]) < len(ours[0])


def not_whole(_text: str, ours: Reply, theirs: Reply) -> bool:
    """Arguments that have no end, or break their form: they mend them, or take no call."""
    return any(_is_open(value) and value not in _values(theirs) for value in _values(ours))


def no_object(_text: str, ours: Reply, theirs: Reply) -> bool:
    added = [value for value in _values(theirs) if value not in _values(ours)]
    return bool(added) and all(isinstance(value, str) and not _is_open(value) for value in added)


def nameless(_text: str, ours: Reply, theirs: Reply) -> bool:
    nothing = [call for call in theirs[2] if not call[0] or (isinstance(call[1], dict) and "" in call[1])]
    return bool(nothing) and all(call not in ours[2] for call in nothing)


def no_value_yet(_text: str, ours: Reply, theirs: Reply) -> bool:
    """They have a call of nothing more than its name, which did not end."""
    rest = [call for call in theirs[2] if call not in ours[2]]
    return bool(rest) and all(value == {} for _, value in rest) and len(ours[2]) < len(theirs[2])


def attempt_left_out(_text: str, ours: Reply, theirs: Reply) -> bool:
    return ours[2] == theirs[2] and _hidden(ours, theirs)


def unknown_tool(_text: str, ours: Reply, theirs: Reply) -> bool:
    kept = [call for call in ours[2] if call[0] in ("run", "stop")]
    return kept != ours[2] and kept == theirs[2]


def strict_form(_text: str, ours: Reply, theirs: Reply) -> bool:
    """They take fewer calls than we do, and none that we do not."""
    return len(theirs[2]) < len(ours[2]) and all(call in ours[2] for call in theirs[2])


def outside_a_block(_text: str, ours: Reply, theirs: Reply) -> bool:
    return len(theirs[2]) > len(ours[2]) and all(call in theirs[2] for call in ours[2])


def value_within_value(_text: str, ours: Reply, theirs: Reply) -> bool:
    return any("<parameter=" in str(value) for value in _values(ours)) and ours[0] == theirs[0]


def type_of_value(_text: str, ours: Reply, theirs: Reply) -> bool:
    """The same parameters of the same calls, of another JSON type."""
    shapes = [[(name, list(value)) for name, value in reply[2] if isinstance(value, dict)] for reply in (ours, theirs)]
    if shapes[0] != shapes[1]:
        return False
    pairs = [(a[key], b[key]) for a, b in zip(_values(ours), _values(theirs), strict=True) for key in a]
    return all(a == b or isinstance(a, str) != isinstance(b, str) for a, b in pairs)


def text_after_a_call(_text: str, ours: Reply, theirs: Reply) -> bool:
    return ours[2] == theirs[2] and bool(ours[2]) and theirs[0].startswith(ours[0])


def special_tokens(_text: str, ours: Reply, theirs: Reply) -> bool:
    return ours[2] == theirs[2] and _SPECIAL.sub("", theirs[0]) == ours[0]


def marker_missing(_text: str, ours: Reply, theirs: Reply) -> bool:
    """What comes next ends a name, a key or a call whose own end is missing; they go on, or leave it out."""
    return _parameters(ours) != _parameters(theirs)


def _parameters(reply: Reply) -> list[tuple[str, list[str]]]:
    return [(name, list(value)) for name, value in reply[2]]


RULES: dict[str, Rule] = {
    "not whole": not_whole,
    "no object": no_object,
    "nameless": nameless,
    "no value yet": no_value_yet,
    "attempt left out": attempt_left_out,
    "unknown tool": unknown_tool,
    "strict form": strict_form,
    "outside a block": outside_a_block,
    "value within a value": value_within_value,
    "type of a value": type_of_value,
    "special tokens": special_tokens,
    "text after a call": text_after_a_call,
    "marker missing": marker_missing,
}
