"""One answer of a fleet from the answers of its workers: lists are joined, Prometheus samples of one name summed."""

import json
import re
from collections.abc import Sequence
from typing import Any

SAMPLE = re.compile(r"^(?P<series>[A-Za-z_:][\w:]*(?:\{.*\})?)\s+(?P<value>\S+)(?:\s+-?\d+)?$")
"""A line of the text format that carries a number."""


def merge_json(bodies: Sequence[bytes]) -> bytes:
    """Lists are joined in the order of the slots, objects field by field; of differing scalars numbers are summed."""
    merged: Any = None
    for body in bodies:
        merged = _join(merged, json.loads(body))
    return json.dumps(merged).encode()


def merge_metrics(bodies: Sequence[bytes]) -> bytes:
    """The text format with each series once; comments come once, before the first series of their family."""
    lines: dict[str, float | None] = {}
    for body in bodies:
        for line in body.decode().splitlines():
            found = SAMPLE.match(line)
            if found is None:
                lines.setdefault(line, None)
            else:
                lines[found["series"]] = (lines.get(found["series"]) or 0.0) + float(found["value"])
    return "".join(_line(text, value) for text, value in lines.items() if text).encode()


def _line(text: str, value: float | None) -> str:
    return f"{text}\n" if value is None else f"{text} {value:.17g}\n"


def _join(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _join(one.get(name), other.get(name)) for name in {**one, **other}}
    is_number = isinstance(one, int | float) and not isinstance(one, bool) and isinstance(other, int | float)
    return one + other if is_number else one
