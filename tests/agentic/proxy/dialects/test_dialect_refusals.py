"""Refusing a body costs no more than taking it: one problem is looked for and named, however many there are."""

import copy
import json
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from dialect_hostility import GOOD
from pydantic import ValidationError

from agentic.proxy.dialects import make_dialects
from agentic.proxy.dialects.base import Dialect
from agentic.proxy.errors import InvalidRequest

DIALECTS: dict[str, Dialect[Any]] = {dialect.path: dialect for dialect in make_dialects()}
WRONG = [0, "x", None, [], {}, [0], {"role": 3}, {"function": 0}]
"""What most places of a body do not take."""
TAKEN = ("stop", "stop_sequences", "summary", "annotations")
"""Lists that nothing reads, so whatever is in them is taken."""
MOST_PROBLEMS = 16
"""Of one body: a place allows so many forms at most."""


def lists_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a body lists are."""
    if isinstance(value, list):
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from lists_in(inner, (*place, key))


LISTS = [(path, place) for path in sorted(DIALECTS) for place in lists_in(GOOD[path])]


def with_list(path: str, place: tuple[Any, ...], items: list[Any]) -> bytes:
    """A good body in which one list has these items."""
    body = copy.deepcopy(GOOD[path])
    holder = body
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = items
    return json.dumps(body).encode()


def problems_of(error: BaseException | None) -> int:
    """How many the refusal was chosen from."""
    if error is None:
        return 0
    return error.error_count() if isinstance(error, ValidationError) else problems_of(error.__cause__)


def work_of(dialect: Dialect[Any], body: bytes) -> tuple[int, int]:
    """How many calls are made, and how many problems found, until a body is refused; none if it is taken."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        dialect.to_call(dialect.parse(body))
    except InvalidRequest as error:
        return calls, problems_of(error)
    finally:
        sys.setprofile(before)
    return 0, 0


@pytest.mark.parametrize(("path", "place"), LISTS, ids=lambda value: str(value))
def test_a_hundred_times_as_many_problems_are_as_much_work(path: str, place: tuple[Any, ...]) -> None:
    dialect = DIALECTS[path]
    refused = 0
    for item in WRONG:
        few, many = (work_of(dialect, with_list(path, place, [item] * count)) for count in (20, 2000))
        # Bodies are looked through for their depth before, which takes up to two calls for each item.
        assert many[0] - few[0] <= 2 * 2000
        assert few[1] == many[1] <= MOST_PROBLEMS
        refused += many[0] > 0
    assert refused or place[-1] in TAKEN
