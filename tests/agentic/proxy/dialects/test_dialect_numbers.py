"""Arguments that a client has parsed and written again are the same arguments."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.proxy.conversation import Message, ToolCall, conversation_keys
from agentic.proxy.dialects.wire import read_arguments, read_object
from agentic.proxy.errors import InvalidRequest


def key_of(arguments: str) -> str:
    return conversation_keys([Message("assistant", tool_calls=(ToolCall("", "run", arguments),))], None)[0]


@pytest.mark.parametrize(
    ("written", "again"),
    [
        ('{"a": 1.0}', '{"a":1}'),
        ('{"a": 1e3, "b": -0.0}', '{"b":0,"a":1000}'),
        ('{"a": 12345678901234567890}', '{"a":12345678901234567000}'),
        ('{"a": 1, "a": 2}', '{"a":2}'),
        ('{"a": "\\u00e9"}', '{"a":"é"}'),
        ('{"a": "cut \\ud83d"}', '{"a":"cut \ufffd"}'),
    ],
)
def test_javascript_writes_the_same_arguments(written: str, again: str) -> None:
    assert key_of(written) == key_of(again)


@pytest.mark.parametrize(
    ("one", "other"), [('{"a": 1}', '{"a": 2}'), ('{"a": "1"}', '{"a": 1}'), ('{"a": 1.5}', '{"a": 1}')]
)
def test_other_arguments_are_others(one: str, other: str) -> None:
    assert key_of(one) != key_of(other)


@given(
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False) | st.integers(), max_size=3)
)
def test_spacing_and_order_do_not_count(value: dict[str, float]) -> None:
    turned = dict(reversed(value.items()))
    assert key_of(json.dumps(value)) == key_of(json.dumps(turned, indent=2))


@pytest.mark.parametrize("text", ["[" * 20000, '{"a":' * 20000, "9" * 5000, "{", ""])
def test_text_that_is_no_object_counts_as_it_is(text: str) -> None:
    assert key_of(text) == key_of(text) != key_of(text + " ")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
@pytest.mark.parametrize("text", ["", "cut \\ud83d"])
def test_numbers_that_json_cannot_say_again_are_refused_in_bodies_and_no_arguments(number: str, text: str) -> None:
    written = f'{{"a": "{text}", "b": [{number}]}}'
    assert read_arguments(written) is None
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        read_object(written.encode())
    assert read_arguments(written.replace(number, "1e99")) == {"a": text[:4] + "\ufffd" * bool(text), "b": [1e99]}
