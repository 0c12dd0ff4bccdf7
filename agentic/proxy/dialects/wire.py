"""JSON bodies as they come in and go out: read strictly, bounded in depth, checked against a model.

NaN and infinities are refused as the real services refuse them; half a surrogate pair, which clients make by cutting
text in the middle of a character, becomes U+FFFD: so nothing of the kind reaches a tokenizer or a template. Of
duplicated keys the last counts. Only failures that name the field at fault leave this module. One field is named, so
what is looked for are not all problems of a body: refusing it costs no more than taking it.
"""

import json
import math
from collections.abc import Iterable
from typing import Annotated, Any, NoReturn

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, ValidationError

from ..conversation import Json, whole_text
from ..errors import InvalidRequest

MAX_DEPTH = 128
"""Nesting of a body: far beyond any schema of a tool, far below what templates and encoders can recurse."""
CONTAINERS = (dict, list)
"""What JSON nests; readers make these very types."""


type Each[Item] = Annotated[list[Item], FailFast()]
"""A list in a body, of which the first item at fault ends the reading: else each of a million would be a problem."""


class Wire(BaseModel):
    """Base of request models: unknown fields are no error, and dropped."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def read_object(body: bytes) -> Json:
    """The JSON object of a body, or InvalidRequest."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        value = _read_cut_characters(body, str(error))
    if not isinstance(value, dict):
        raise InvalidRequest(f"body: a JSON {type(value).__name__} is not a request: send one JSON object")
    if _is_deeper(value, MAX_DEPTH):
        raise InvalidRequest(f"body: nested more than {MAX_DEPTH} deep: send a flatter one")
    return value


def check[Model: BaseModel](model: type[Model], value: object) -> Model:
    """The value as a model, or InvalidRequest that names the first field at fault."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        found = [(_place(value, each["loc"], each["type"] == "missing"), each["msg"]) for each in problems]
        # Where several forms are allowed, the one that fits furthest is the one that was meant.
        place, problem = max(found, key=lambda each: len(each[0]))
        name = ".".join(place)
        raise InvalidRequest(f"{name or 'body'}: {problem}", name or None) from error


def write_json(value: object) -> str:
    """JSON text; what a model wrote as half a surrogate pair stays an escape."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def read_arguments(text: str) -> Any:
    """What JSON text of a tool call says, or None if it is not JSON."""
    try:
        return _whole_characters(_read_strictly(text))
    except (ValueError, RecursionError):
        return None


def _place(value: object, parts: tuple[int | str, ...], is_missing: bool) -> list[str]:
    """Of where a problem is, what the client wrote or left out; names of allowed forms are none of that."""
    place = []
    for number, part in enumerate(parts, 1):
        if isinstance(value, dict) and (part in value or (is_missing and number == len(parts))):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        place.append(str(part))
    return place


def _read_cut_characters(body: bytes, problem: str) -> Any:
    refusal = InvalidRequest(f"body: not valid JSON: {problem}: send one JSON object")
    if "surrogate in string" not in problem:
        raise refusal
    try:
        return _whole_characters(_read_strictly(body))
    except (ValueError, RecursionError) as error:
        raise refusal from error


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_whole_characters(inner) for inner in value]
    if isinstance(value, dict):
        return {whole_text(name): _whole_characters(inner) for name, inner in value.items()}
    return value


def _read_strictly(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _finite(text: str) -> float:
    """A number that JSON can say again."""
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer) if type(inner) in CONTAINERS]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()
