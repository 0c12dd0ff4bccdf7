"""Completions on the way in: one prompt, as text or ids."""

import json
from typing import Any

import pytest

from agentic.proxy.dialects.base import CallRequest
from agentic.proxy.dialects.completions import CompletionsDialect
from agentic.proxy.errors import InvalidRequest


def call_of(**fields: Any) -> CallRequest:
    dialect = CompletionsDialect()
    return dialect.to_call(dialect.parse(json.dumps({"model": "policy", **fields}).encode()))


@pytest.mark.parametrize(
    ("prompt", "read"), [("hi", "hi"), ([1, 2], (1, 2)), (["hi"], "hi"), ([[1, 2]], (1, 2)), ([0], (0,))]
)
def test_a_prompt_is_text_or_ids_and_may_stand_in_a_list(prompt: Any, read: Any) -> None:
    call = call_of(prompt=prompt, max_tokens=5, temperature=0.1)
    assert (call.prompt, call.messages, call.max_tokens) == (read, (), 5)
    assert call.asked == {"temperature": 0.1, "max_tokens": 5}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 1}, "logprobs"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        call_of(**fields)


def test_of_a_prompt_s_forms_the_one_that_was_meant_names_the_fault() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt\.1: Input should be less than 4294967296$"):
        call_of(prompt=[1, 2**32])
    with pytest.raises(InvalidRequest, match=r"^prompt\.0\.1: Input should be less than 4294967296$"):
        call_of(prompt=[[1, 2**32]])
    with pytest.raises(InvalidRequest, match=r"^prompt: Input should be a valid string$"):
        call_of(prompt={"text": "hi"})


def test_a_response_format_is_a_constraint_for_the_engine() -> None:
    assert call_of(prompt="a", response_format={"type": "json_object"}).constraint == {"json_object": True}
