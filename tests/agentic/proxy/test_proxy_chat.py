"""The chat dialect: the JSON that a client sees, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from proxy_rig import a_spec, ids_of, running, says, user

from agentic.proxy.conversation import Message, ToolCall, message_deltas
from agentic.proxy.dialects.base import CallReply, DeltaChunk, ReplyHead
from agentic.proxy.dialects.chat import ChatWriter, parse_body, reply_body, to_call
from agentic.proxy.errors import InvalidRequest

CALL = ToolCall("call-1", "run", '{"cmd": "ls"}')


def a_reply(message: Message) -> CallReply:
    return CallReply("1", 1, "policy", message, "stop", None, [1, 2], [65, 66], [-0.5, -0.25])


def streamed(request: Any, reply: CallReply) -> list[str]:
    """The events of a reply that comes in one piece."""
    writer = ChatWriter(request, ReplyHead(reply.reply_id, reply.created, reply.model, reply.prompt_ids), chr)
    deltas = tuple(message_deltas(reply.message))
    chunk = DeltaChunk(deltas, tuple(reply.completion_ids), tuple(reply.logprobs))
    return [*writer.begin(), *writer.delta(chunk), *writer.end(reply)]


def request_of(**fields: Any) -> Any:
    return parse_body(json.dumps({"messages": [user("hi")], **fields}).encode())


MESSAGES = [Message("assistant", "text"), Message("assistant", "say", (CALL,)), Message("assistant", "", (CALL,))]

VLLM_REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "policy",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "text",
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
    ],
    "service_tier": None,
    "system_fingerprint": None,
    "usage": {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": None},
    "prompt_logprobs": None,
    "prompt_token_ids": None,
    "prompt_text": None,
    "kv_transfer_params": None,
}
"""What vLLM 0.24 sends for the same turn; checked against its own models by the e2e test below."""


def test_a_reply_has_the_fields_and_nulls_of_vllm() -> None:
    assert reply_body(request_of(), a_reply(MESSAGES[0]), chr) == VLLM_REPLY


@pytest.mark.parametrize("message", MESSAGES[1:])
def test_a_reply_with_tool_calls_ends_for_them(message: Message) -> None:
    (choice,) = reply_body(request_of(), a_reply(message), chr)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", message.content or None)
    function = {"name": "run", "arguments": '{"cmd": "ls"}'}
    assert choice["message"]["tool_calls"] == [{"id": "chatcmpl-tool-10", "type": "function", "function": function}]


@pytest.mark.e2e
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("extras", [{}, {"return_token_ids": True, "logprobs": True}])
def test_vllm_s_own_models_read_and_write_the_same_json(message: Message, extras: dict[str, Any]) -> None:
    # Importing vLLM takes seconds, so this is not one of the unit tests.
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    body = reply_body(request_of(**extras), a_reply(message), chr)
    assert protocol.ChatCompletionResponse.model_validate(body).model_dump() == body
    *events, _ = streamed(request_of(stream=True, **extras), a_reply(message))
    for event in events:
        payload = json.loads(event.removeprefix("data: "))
        chunk = protocol.ChatCompletionStreamResponse.model_validate(payload)
        assert chunk.model_dump(exclude_unset=True) == payload


@pytest.mark.parametrize("message", MESSAGES)
def test_stream_events_add_up_to_the_reply(message: Message) -> None:
    request = request_of(stream=True, stream_options={"include_usage": True}, return_token_ids=True)
    *events, end = streamed(request, a_reply(message))
    assert end == "data: [DONE]\n\n"
    payloads = [json.loads(event.removeprefix("data: ")) for event in events]
    choices = [choice for payload in payloads for choice in payload["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == message.content
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [call["function"]["name"] for call in calls if "id" in call] == [call.name for call in message.tool_calls]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == "".join(call.arguments for call in message.tool_calls)
    assert choices[-1]["finish_reason"] == ("tool_calls" if message.tool_calls else "stop")
    assert payloads[-1]["usage"]["total_tokens"] == 4


async def test_a_streamed_reply_counts_as_received(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")], stream=True)
        sealed = await rig.server.seal("rollout-1")
    assert "answer rollout-1/0" in answer.body
    assert sealed.undelivered_tokens == 0


async def test_token_ids_and_logprobs_are_shown_on_request(tiny_folder: Path) -> None:
    async with running(tiny_folder, [says("yes")]) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")], return_token_ids=True, logprobs=True)
    choice = answer.body["choices"][0]
    assert tuple(choice["token_ids"]) == ids_of("yes<|im_end|>")
    assert answer.body["prompt_token_ids"] == list(rig.engine.received[0].prompt_ids)
    shown = [(entry["token"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
    assert shown == [("y", -0.5), ("e", -0.5), ("s", -0.5), ("<|im_end|>", -0.5)]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_exactly_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        to_call(request_of(**fields))


async def test_a_refusal_is_a_400_with_an_openai_style_body(tiny_folder: Path) -> None:
    async with running(tiny_folder) as rig:
        handle = await rig.server.open(a_spec())
        answer = await rig.ask(handle, [user("hi")], n=3)
    assert answer.status == 400
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}
    assert answer.body["error"]["param"] == "n"


def test_text_parts_are_joined_and_absent_text_is_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    call = to_call(request_of(messages=messages))
    assert [message.content for message in call.messages] == ["a\nb", ""]


def test_neutral_sampling_values_are_not_counted_as_asked_for() -> None:
    call = to_call(request_of(presence_penalty=0.0, stop=[], min_p=0, temperature=None, logit_bias=None, user="me"))
    assert call.asked == {}
