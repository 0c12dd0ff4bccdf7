"""Field by field: what the proxy sends is what vLLM's own models would send (invariant 11).

Importing vLLM takes many seconds, so these are not among the unit tests.
"""

import json
from typing import Any

import pytest
from dialect_streams import a_reply, stream_text
from dialect_writing import chat_body

from agentic.proxy.conversation import Message, ToolCall, message_deltas
from agentic.proxy.dialects.base import DeltaChunk, Dialect
from agentic.proxy.dialects.chat import ChatDialect
from agentic.proxy.dialects.completions import CompletionsDialect
from agentic.proxy.errors import InvalidRequest

pytestmark = pytest.mark.e2e

TURNS = [
    Message("assistant", "text"),
    Message("assistant", "say", (ToolCall("", "run", '{"a": 1}'), ToolCall("", "read", "{}")), reasoning="hm"),
    Message("assistant", "", (ToolCall("", "run", "{}"),)),
]
EXTRAS: list[dict[str, Any]] = [
    {},
    {"return_token_ids": True, "logprobs": True},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]


def fields_of(model: Any) -> set[str]:
    return set(model.model_fields)


def events_of(dialect: Dialect[Any], body: Any, turn: Message) -> list[Any]:
    chunk = DeltaChunk(tuple(message_deltas(turn)), (65, 66, 67, 68, 69), (-0.5,) * 5)
    request = dialect.parse(json.dumps(body | {"stream": True}).encode())
    lines = stream_text(dialect, request, a_reply(turn), [chunk]).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]


@pytest.mark.parametrize("turn", TURNS, ids=["text", "all", "call"])
@pytest.mark.parametrize("extras", EXTRAS, ids=["plain", "tokens", "usage"])
def test_chat_replies_have_vllm_s_fields(turn: Message, extras: dict[str, Any]) -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    dialect, body = ChatDialect(), chat_body([Message("user", "hi")]) | extras
    whole = dialect.reply_body(dialect.parse(json.dumps(body).encode()), a_reply(turn), chr)
    assert protocol.ChatCompletionResponse.model_validate(whole).model_dump() == whole
    assert set(whole) == fields_of(protocol.ChatCompletionResponse)
    (choice,) = whole["choices"]
    assert set(choice) == fields_of(protocol.ChatCompletionResponseChoice)
    assert set(choice["message"]) | {"tool_calls"} == fields_of(protocol.ChatMessage)
    for payload in events_of(dialect, body, turn):
        chunk = protocol.ChatCompletionStreamResponse.model_validate(payload)
        assert chunk.model_dump(exclude_unset=True) == payload
        assert set(payload) <= fields_of(protocol.ChatCompletionStreamResponse)
        for shown in payload["choices"]:
            assert set(shown) <= fields_of(protocol.ChatCompletionResponseStreamChoice)


@pytest.mark.parametrize(
    "extras", [{}, {"return_token_ids": True, "logprobs": 0}, EXTRAS[2]], ids=["plain", "tokens", "usage"]
)
def test_completion_replies_have_vllm_s_fields(extras: dict[str, Any]) -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    dialect, body = CompletionsDialect(), {"prompt": "hi"} | extras
    whole = dialect.reply_body(dialect.parse(json.dumps(body).encode()), a_reply(TURNS[0]), chr)
    assert protocol.CompletionResponse.model_validate(whole).model_dump() == whole
    assert set(whole) == fields_of(protocol.CompletionResponse)
    assert set(whole["choices"][0]) == fields_of(protocol.CompletionResponseChoice)
    for payload in events_of(dialect, body, TURNS[0]):
        chunk = protocol.CompletionStreamResponse.model_validate(payload)
        assert chunk.model_dump(exclude_unset=True) == payload


REFUSED = {
    "n",
    "top_logprobs",
    "prompt_logprobs",
    "continue_final_message",
    "add_generation_prompt",
    "chat_template",
    "echo",
}
"""Fields of a chat request that are refused by name where they ask for more than the default."""


def test_every_field_of_vllm_s_chat_request_is_taken_at_its_default() -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    asked = protocol.ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}])
    body = asked.model_dump(mode="json")
    call = ChatDialect().to_call(ChatDialect().parse(json.dumps(body).encode()))
    assert call.asked == {}
    assert fields_of(protocol.ChatCompletionRequest) >= REFUSED
    for name, value in {"n": 2, "top_logprobs": 1, "prompt_logprobs": 1, "echo": True}.items():
        with pytest.raises(InvalidRequest, match=name):
            ChatDialect().parse(json.dumps(body | {name: value}).encode())
