"""One answer of a fleet from its workers' answers: lists are joined, Prometheus samples carry their worker's slot.

Samples are not summed: a worker that is started again begins at 0, and a sum that falls by its part would be read as
a reset of all of it.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?(?P<rest>\s+\S+(?:\s+-?\d+)?)$")
"""A line of the text format that carries a number."""


def merge_json(bodies: Sequence[bytes]) -> bytes:
    """Lists are joined in the order of the slots, objects field by field; of differing scalars numbers are summed."""
    merged: Any = None
    for body in bodies:
        merged = _join(merged, json.loads(body))
    return json.dumps(merged).encode()


def merge_metrics(bodies: Sequence[bytes]) -> bytes:
    """The text format with a label `slot`; comments come once, before the samples of their family."""
    lines: dict[str, list[str]] = {}
    for slot, body in enumerate(bodies):
        for line in filter(None, body.decode().splitlines()):
            found = SAMPLE.match(line)
            if found is None:
                lines[line] = [line]
            else:
                lines.setdefault(found["name"], []).append(_labelled(found, slot))
    return "".join(f"{line}\n" for family in lines.values() for line in family).encode()


def _labelled(sample: re.Match[str], slot: int) -> str:
    others = f",{sample['labels']}" if sample["labels"] else ""
    return f'{sample["name"]}{{slot="{slot}"{others}}}{sample["rest"]}'


def _join(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _join(one.get(name), other.get(name)) for name in {**one, **other}}
    is_number = isinstance(one, int | float) and not isinstance(one, bool) and isinstance(other, int | float)
    return one + other if is_number else one
