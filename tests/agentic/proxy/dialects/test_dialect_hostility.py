"""Whatever is sent: a good request, or a refusal that names what is wrong. Never anything else."""

import json
from typing import Any

import pytest
from dialect_hostility import GOOD, spoiled_bodies, spoiled_bytes
from dialect_streams import a_reply
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.proxy.conversation import Message, ToolCall, conversation_keys
from agentic.proxy.dialects import make_dialects
from agentic.proxy.dialects.base import Dialect
from agentic.proxy.errors import InvalidRequest

DIALECTS: dict[str, Dialect[Any]] = {dialect.path: dialect for dialect in make_dialects()}
PATHS = sorted(DIALECTS)
UNTIMED = settings(deadline=None, max_examples=300)
TURN = Message("assistant", "text", (ToolCall("", "run", '{"a": 1}'),), reasoning="hm")


def handle(dialect: Dialect[Any], body: bytes) -> None:
    """All that a dialect does for a request, as the server does it."""
    try:
        request = dialect.parse(body)
        call = dialect.to_call(request)
    except InvalidRequest as error:
        told = json.dumps(dialect.error_body(error), allow_nan=False)
        if "\\n" in told:
            raise AssertionError(f"{told} is more than one line") from error
        return
    conversation_keys(call.messages, call.tools)
    json.dumps(dialect.reply_body(request, a_reply(TURN), chr), allow_nan=False)
    if call.prompt is None and call.continues is None:
        assert call.messages


@pytest.mark.parametrize("path", PATHS)
def test_a_good_request_is_taken(path: str) -> None:
    dialect = DIALECTS[path]
    call = dialect.to_call(dialect.parse(json.dumps(GOOD[path]).encode()))
    assert call.messages or call.prompt


@UNTIMED
@given(st.data(), st.sampled_from(PATHS))
def test_a_spoiled_body_is_refused_by_name_or_taken(data: st.DataObject, path: str) -> None:
    handle(DIALECTS[path], json.dumps(data.draw(spoiled_bodies(path))).encode())


@UNTIMED
@given(st.data(), st.sampled_from(PATHS))
def test_bytes_that_are_no_request_are_refused(data: st.DataObject, path: str) -> None:
    handle(DIALECTS[path], data.draw(spoiled_bytes(path)))


@pytest.mark.parametrize("path", PATHS)
def test_half_a_character_is_replaced_and_not_refused(path: str) -> None:
    text = json.dumps(GOOD[path]).replace('"hi"', '"cut \\ud83d"')
    call = DIALECTS[path].to_call(DIALECTS[path].parse(text.encode()))
    assert not call.messages or "cut \ufffd" in [message.content for message in call.messages]


UNKNOWN = {
    "metadata": {"user_id": "me"},
    "user": "me",
    "store": False,
    "service_tier": "auto",
    "betas": ["x-1"],
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "context_management": {"edits": []},
    "client_metadata": {"a": [1]},
    "verbosity": "low",
    "reasoning_effort": "high",
    "no_such_field": {"deep": [None]},
}


@pytest.mark.parametrize("path", PATHS)
def test_fields_that_say_nothing_to_a_model_are_accepted(path: str) -> None:
    dialect = DIALECTS[path]
    plain, full = (dialect.parse(json.dumps(GOOD[path] | extra).encode()) for extra in ({}, UNKNOWN))
    if path == "/responses":
        assert dialect.to_call(full).messages == dialect.to_call(plain).messages
    else:
        assert dialect.to_call(full) == dialect.to_call(plain)
