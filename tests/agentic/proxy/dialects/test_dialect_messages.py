"""Anthropic messages on the way in and out."""

import json
from typing import Any

import pytest
from dialect_streams import a_reply

from agentic.proxy.conversation import Message, ToolCall
from agentic.proxy.dialects import messages
from agentic.proxy.dialects.base import CallRequest
from agentic.proxy.errors import InvalidRequest, Unauthorized, UnknownSession

TOOL = {"name": "run", "description": "d", "input_schema": {"type": "object"}}


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}


def call_of(**fields: Any) -> CallRequest:
    return messages.to_call(messages.parse_body(json.dumps(body_of(**fields)).encode()))


def test_a_message_with_results_and_text_is_several_messages_in_order() -> None:
    use = {
        "type": "tool_use",
        "id": "t1",
        "name": "run",
        "input": {"cmd": "ls"},
        "cache_control": {"type": "ephemeral"},
    }
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "no"}]}
    given = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "go on"}]},
    ]
    assert list(call_of(messages=given).messages) == [
        Message("user", "a\nb"),
        Message("assistant", "", (ToolCall("t1", "run", '{"cmd":"ls"}'),), reasoning="hm"),
        Message("tool", "no", tool_call_id="t1", name="run"),
        Message("user", "go on"),
    ]


def test_system_text_is_the_same_as_a_string_as_blocks_and_among_the_messages() -> None:
    blocks = [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}]
    first, second = call_of(system="rules"), call_of(system=blocks)
    assert first.messages == second.messages == (Message("system", "rules"), Message("user", "hi"))
    notes = [
        call_of(messages=[{"role": "user", "content": "hi"}, {"role": "system", "content": note}])
        for note in ("changed", [{"type": "text", "text": "changed", "cache_control": {"type": "ephemeral"}}])
    ]
    assert notes[0].messages == notes[1].messages == (Message("user", "hi"), Message("system", "changed"))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"}}, "page"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "page"}]}}, "page"),
        ({"type": "search_result", "content": [{"type": "text", "text": "hit"}], "source": "s", "title": "t"}, "hit"),
    ],
)
def test_documents_of_text_are_text(block: Any, text: str) -> None:
    assert call_of(messages=[{"role": "user", "content": [block]}]).messages == (Message("user", text),)


@pytest.mark.parametrize("kind", ["image", "document", "container_upload"])
def test_blocks_that_are_no_text_are_refused_by_name(kind: str) -> None:
    block = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    for content in ([block], [result]):
        with pytest.raises(InvalidRequest, match=f"a part of type '{kind}' is not supported"):
            call_of(messages=[{"role": "user", "content": content}])


def test_what_anthropic_s_servers_did_is_left_out_and_counted() -> None:
    content = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "text", "text": "a"}]
    given = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "b"},
    ]
    call = call_of(messages=given, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}])
    assert call.messages[1] == Message("assistant", "a")
    assert [tool["function"]["name"] for tool in call.tools] == ["run"]
    counted = {"content.server_tool_use": "left out", "tools.web_search_20250305": "left out"}
    assert {name: value for name, value in call.asked.items() if name != "max_tokens"} == counted


@pytest.mark.parametrize(
    ("choice", "may_call", "forced"),
    [
        ({"type": "auto"}, True, ()),
        ({"type": "none"}, False, ()),
        ({"type": "any"}, True, ("run",)),
        ({"type": "tool", "name": "run"}, True, ("run",)),
    ],
)
def test_a_tool_choice_is_auto_none_or_a_constraint(choice: Any, may_call: bool, forced: tuple[str, ...]) -> None:
    call = call_of(tools=[TOOL], tool_choice=choice)
    assert (call.may_call_tools, call.forced_tools) == (may_call, forced)


def test_sampling_values_are_the_session_s_and_counted() -> None:
    call = call_of(temperature=0.2, top_k=3, stop_sequences=["x"], metadata={"user_id": "u"}, service_tier="auto")
    assert call.asked == {"temperature": 0.2, "top_k": 3, "stop": ["x"], "max_tokens": 9}


def test_an_output_format_is_a_constraint_for_the_engine() -> None:
    output = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert call_of(output_config=output).constraint == {"json": {"type": "object"}}
    assert call_of(output_config={"effort": "high"}).constraint is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}, "prefilled"),
        ({"messages": [{"role": "user", "content": [3]}]}, "messages.0.content"),
        ({"tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tools": [{"input_schema": {}}]}, "tools.0"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        call_of(**fields)


@pytest.mark.parametrize(
    ("turn", "finish", "reason"),
    [
        (Message("assistant", "a"), "stop", "end_turn"),
        (Message("assistant", "a"), "length", "max_tokens"),
        (Message("assistant", "", (ToolCall("", "run", "{}"),)), "stop", "tool_use"),
    ],
)
def test_why_a_reply_ended_is_said_in_anthropic_s_words(turn: Message, finish: str, reason: str) -> None:
    request = messages.parse_body(json.dumps(body_of()).encode())
    body = messages.reply_body(request, a_reply(turn, finish))
    assert (body["stop_reason"], body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (reason, 3, 5)


def test_arguments_that_are_no_object_come_back_as_they_were() -> None:
    turn = Message("assistant", "", (ToolCall("", "run", "[1"),))
    content = messages.reply_body(messages.parse_body(json.dumps(body_of()).encode()), a_reply(turn))["content"]
    given = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "x"},
    ]
    assert call_of(messages=given).messages[1].tool_calls[0].arguments == "[1"


def test_errors_have_anthropic_s_types() -> None:
    bodies = [messages.error_body(error) for error in (Unauthorized("k"), UnknownSession("s"), InvalidRequest("x"))]
    assert [body["error"]["type"] for body in bodies] == [
        "authentication_error",
        "not_found_error",
        "invalid_request_error",
    ]
