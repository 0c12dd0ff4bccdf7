"""The Responses API on the way in: items put together to turns, tools of every kind."""

import json
from typing import Any

import pytest
from dialect_streams import a_reply

from agentic.proxy.conversation import Message, ToolCall
from agentic.proxy.dialects import responses
from agentic.proxy.dialects.base import REFERENCE, CallRequest
from agentic.proxy.errors import InvalidRequest

STEM = "0123456789abcdef01234567"
USER = {"role": "user", "content": "hi"}


def call_of(**fields: Any) -> CallRequest:
    return responses.to_call(responses.parse_body(json.dumps({"model": "policy", "input": [USER], **fields}).encode()))


def function_call(number: int, call_id: str | None = None) -> dict[str, Any]:
    given = {"call_id": call_id or f"call_{STEM}{number}", "name": "run", "arguments": "{}"}
    return {"type": "function_call", "id": f"fc_{number}"} | given


def output(number: int, text: Any = "out") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{STEM}{number}", "output": text}


def roles(call: CallRequest) -> list[str]:
    return [f"{m.role}{len(m.tool_calls) or ''}" for m in call.messages]


def text_item(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text, "annotations": []}]}


def test_items_of_one_turn_are_one_message() -> None:
    thinking = {"type": "reasoning", "id": "rs_0", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    given = [USER, thinking, text_item("I look"), function_call(0), function_call(1), output(0), output(1)]
    call = call_of(input=given)
    assert roles(call) == ["user", "assistant2", "tool", "tool"]
    assert (call.messages[1].content, call.messages[1].reasoning) == ("I look", "hm")
    assert [message.name for message in call.messages[2:]] == ["run", "run"]


def test_calls_between_results_join_the_turn_that_their_ids_say() -> None:
    given = [USER, function_call(0), output(0), function_call(1), output(1)]
    assert roles(call_of(input=given)) == ["user", "assistant2", "tool", "tool"]
    foreign = [USER, function_call(0, "a"), output(0), function_call(1, "b"), output(1)]
    assert roles(call_of(input=foreign)) == ["user", "assistant1", "tool", "assistant1", "tool"]


def test_a_new_thought_begins_a_new_turn() -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    given = [USER, text_item("a"), thinking, function_call(0), output(0), thinking, text_item("b")]
    assert roles(call_of(input=given)) == ["user", "assistant", "assistant1", "tool", "assistant"]


def test_thinking_without_a_turn_stays() -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert call_of(input=[USER, thinking, USER]).messages[1] == Message("assistant", reasoning="hm")


@pytest.mark.parametrize(
    ("text", "read"),
    [("out", "out"), ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"), (None, "")],
)
def test_results_are_text_or_parts_of_text(text: Any, read: str) -> None:
    assert call_of(input=[USER, function_call(0), output(0, text)]).messages[2].content == read


def test_references_stand_for_stored_turns() -> None:
    ids = [f"rs_{'a' * 32}", f"msg_{'a' * 32}", f"fc_{'a' * 32}_0"]
    given = [USER, *({"type": "item_reference", "id": one} for one in ids), output(0)]
    call = call_of(input=given)
    assert call.messages[1] == Message(REFERENCE, "a" * 32)
    assert roles(call) == ["user", REFERENCE, "tool"]
    with pytest.raises(InvalidRequest, match="not found"):
        call_of(input=[USER, {"type": "item_reference", "id": "msg_1"}])


def test_tools_of_every_kind_are_shown_or_left_out_and_counted() -> None:
    function = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}
    tools = [
        function,
        {"type": "custom", "name": "patch", "description": "d"},
        {"type": "namespace", "name": "mcp", "description": "d", "tools": [function, {"type": "custom", "name": "c"}]},
        {"type": "web_search", "external_web_access": True},
        {"type": "local_shell"},
    ]
    call = call_of(tools=tools)
    assert [tool["function"]["name"] for tool in call.tools] == ["run", "patch", "mcp__run", "mcp__c"]
    assert call.asked == {"tools.web_search": "left out", "tools.local_shell": "left out"}


def test_a_call_of_a_tool_in_a_namespace_has_its_own_name_on_the_wire() -> None:
    inner = {"type": "function", "name": "run", "parameters": {}}
    tools = [{"type": "namespace", "name": "mcp", "description": "d", "tools": [inner]}]
    request = responses.parse_body(json.dumps({"input": "hi", "tools": tools}).encode())
    turn = Message("assistant", "", (ToolCall("", "mcp__run", "{}"),))
    (item,) = responses.reply_body(request, a_reply(turn))["output"]
    assert (item["name"], item["namespace"]) == ("run", "mcp")
    again = call_of(input=[USER, item], tools=tools)
    assert again.messages[1].tool_calls[0].name == "mcp__run"


def test_items_that_only_openai_s_tools_leave_are_skipped_and_counted() -> None:
    given = [USER, {"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"type": "compaction", "id": "c"}]
    call = call_of(input=given)
    assert roles(call) == ["user"]
    assert call.asked == {"input.web_search_call": "left out", "input.compaction": "left out"}


def test_instructions_lead_and_are_not_stored() -> None:
    stored = call_of(instructions="rules", input=[{"role": "developer", "content": "more"}, USER])
    assert [m.content for m in stored.messages] == ["rules", "more", "hi"]
    assert (stored.lead, stored.is_stored, stored.continues) == (1, True, None)
    alone = call_of(instructions="rules", input=[{"role": "developer", "content": "more"}, USER], store=False)
    assert [m.content for m in alone.messages] == ["rules\n\nmore", "hi"]
    assert (alone.lead, alone.is_stored) == (0, False)
    assert call_of(previous_response_id=f"resp_{'b' * 32}").continues == "b" * 32


def test_text_formats_and_tool_choices_are_constraints() -> None:
    shape = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    assert call_of(text=shape).constraint == {"json": {"type": "object"}}
    tools = [{"type": "function", "name": "run", "parameters": {}}]
    forced = call_of(tools=tools, tool_choice={"type": "function", "name": "run"}, text=shape)
    assert (forced.forced_tools, forced.constraint) == (("run",), None)
    assert call_of(tools=tools, tool_choice={"type": "web_search"}).asked == {"tool_choice": "web_search"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input.0"),
        ({"input": [{"content": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input_image"),
        ({"previous_response_id": "resp_1"}, "Previous response"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        call_of(**fields)


def test_thinking_that_a_client_carries_comes_back_with_it() -> None:
    request = responses.parse_body(json.dumps({"input": "hi", "include": ["reasoning.encrypted_content"]}).encode())
    items = responses.reply_body(request, a_reply(Message("assistant", "a", reasoning="hm")))["output"]
    items[0]["content"] = None
    assert call_of(input=[USER, *items]).messages[1].reasoning == "hm"


def test_a_cut_reply_is_incomplete() -> None:
    request = responses.parse_body(b'{"input": "hi"}')
    body = responses.reply_body(request, a_reply(Message("assistant", "a"), "length"))
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][-1]["status"] == "incomplete"
