"""Chat completions on the way in: tools, constraints, parts, and what is only counted."""

import json
from typing import Any

import pytest

from agentic.proxy.conversation import Message
from agentic.proxy.dialects import chat
from agentic.proxy.dialects.base import CallRequest
from agentic.proxy.errors import InvalidRequest

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("run", "read")]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def call_of(**fields: Any) -> CallRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS} | fields
    return chat.to_call(chat.parse_body(json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("choice", "may_call", "forced"),
    [
        (None, True, ()),
        ("auto", True, ()),
        ("none", False, ()),
        ("required", True, ("run", "read")),
        ({"type": "function", "function": {"name": "read"}}, True, ("read",)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, True, ()),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "run"}}]},
            },
            True,
            ("run",),
        ),
    ],
)
def test_a_tool_choice_is_auto_none_or_a_constraint(choice: Any, may_call: bool, forced: tuple[str, ...]) -> None:
    call = call_of(tool_choice=choice)
    assert (call.may_call_tools, call.forced_tools) == (may_call, forced)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "run"}}])
def test_a_call_cannot_be_forced_without_its_tool(choice: Any) -> None:
    with pytest.raises(InvalidRequest, match="tool_choice"):
        call_of(tools=[], tool_choice=choice)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["yes", "n.o"]}}, {"regex": "(?:yes)|(?:n\\.o)"}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": SCHEMA}),
    ],
)
def test_a_response_format_is_a_constraint_for_the_engine(fields: Any, constraint: Any) -> None:
    assert call_of(**fields).constraint == constraint


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format.schema"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"tools": [{"type": "function"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"echo": True}, "echo"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(fields: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        call_of(**fields)


def test_sampling_values_are_the_session_s_and_counted() -> None:
    call = call_of(temperature=0.1, stop=["x"], frequency_penalty=0.5, presence_penalty=0, logit_bias={}, seed=3)
    assert call.asked == {"temperature": 0.1, "stop": ["x"], "frequency_penalty": 0.5, "seed": 3}


def test_a_tool_is_shown_in_one_form_whatever_else_its_schema_says() -> None:
    turned = {"function": {"strict": True, "parameters": {}, "description": "d", "name": "run"}, "cache_control": {}}
    (tool,) = call_of(tools=[turned]).tools
    shown = {"type": "function", "function": {"name": "run", "description": "d", "parameters": {}}}
    assert json.dumps(tool) == json.dumps(shown)


def test_tools_that_are_no_functions_are_left_out_and_counted() -> None:
    call = call_of(tools=[*TOOLS, {"type": "custom", "custom": {"name": "x"}}])
    assert list(call.tools) == TOOLS
    assert call.asked == {"tools.custom": "left out"}


def test_texts_of_every_kind_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}, {"type": "input_text", "text": "c"}]
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "me"},
        {"role": "assistant", "content": None, "refusal": None, "audio": None, "reasoning_content": "hm"},
        {"role": "function", "name": "f", "content": "out"},
        {"role": "user", "content": ""},
    ]
    assert list(call_of(messages=messages).messages) == [
        Message("system", "rules"),
        Message("user", "a\nb\nc", name="me"),
        Message("assistant", "", reasoning="hm"),
        Message("tool", "out", name="f"),
        Message("user", ""),
    ]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"messages.0.content: a part of type '{kind}' is not supported"):
        call_of(messages=[{"role": "user", "content": [{"type": kind, kind: {}}]}])
