"""JSON text of values that a model has written in another form."""

import json

from ..conversation import whole_text


def escaped(text: str) -> str:
    """Text as it stands within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(text: str) -> str:
    """The JSON value that is written, or else the text itself as a string."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        return whole_text(json.dumps(value, ensure_ascii=False, allow_nan=False))  # 1e999 is read as infinite
    except (ValueError, RecursionError):
        return whole_text(json.dumps(text, ensure_ascii=False))


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
