"""Streamed replies put together by the SDKs themselves are the whole replies."""

import json
from typing import Any

import pytest
from dialect_streams import a_reply, anthropic_client, chunkings, openai_client, stream_text
from dialect_writing import TOOLS, assistant_turns, chat_body, messages_body, responses_body
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.proxy.conversation import Message, ToolCall, message_deltas
from agentic.proxy.dialects.base import DeltaChunk, ReplyHead
from agentic.proxy.dialects.chat import ChatDialect
from agentic.proxy.dialects.completions import CompletionsDialect
from agentic.proxy.dialects.messages import MessagesDialect
from agentic.proxy.dialects.responses import ResponsesDialect
from agentic.proxy.errors import ContextOverflow, GenerationFailed

ASKED = [Message("user", "hi")]
UNTIMED = settings(deadline=None, max_examples=60)
FINISHES = st.sampled_from(["stop", "length"])


@UNTIMED
@given(st.data(), assistant_turns(), FINISHES)
def test_chat_chunks_put_together_are_the_whole_reply(data: st.DataObject, turn: Message, finish: str) -> None:
    dialect, reply = ChatDialect(), a_reply(turn, finish)
    body = chat_body(ASKED) | {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    request = dialect.parse(json.dumps(body).encode())
    client = openai_client(stream_text(dialect, request, reply, data.draw(chunkings(turn))))
    with client.chat.completions.stream(model="policy", messages=[{"role": "user", "content": "hi"}]) as stream:
        choice = stream.until_done().current_completion_snapshot.choices[0]
        usage = stream.current_completion_snapshot.usage
    (whole,) = dialect.reply_body(request, reply, chr)["choices"]
    assert (choice.message.content or None) == (whole["message"]["content"] or None)
    made = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
    shown = whole["message"].get("tool_calls", [])
    assert made == [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in shown]
    assert choice.finish_reason == whole["finish_reason"]
    assert choice.logprobs is not None
    assert [entry.token for entry in choice.logprobs.content or ()] == ["A", "B", "C", "D", "E"]
    assert getattr(choice.message, "reasoning", None) == whole["message"]["reasoning"]
    assert usage is not None
    assert usage.total_tokens == 8


@UNTIMED
@given(st.data(), assistant_turns(), FINISHES, st.sampled_from(["adaptive", "disabled"]))
def test_message_events_put_together_are_the_whole_message(
    data: st.DataObject, turn: Message, finish: str, thinking: str
) -> None:
    dialect, reply = MessagesDialect(), a_reply(turn, finish)
    body = messages_body(ASKED) | {"stream": True, "thinking": {"type": thinking}}
    request = dialect.parse(json.dumps(body).encode())
    client = anthropic_client(stream_text(dialect, request, reply, data.draw(chunkings(turn))))
    with client.messages.stream(model="p", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        final = stream.get_final_message()
    assert parsed_away(final.to_dict()) == parsed_away(dialect.reply_body(request, reply, chr))


@UNTIMED
@given(st.data(), assistant_turns(), FINISHES, st.booleans())
def test_response_events_put_together_are_the_whole_response(
    data: st.DataObject, turn: Message, finish: str, parallel: bool
) -> None:
    dialect, reply = ResponsesDialect(), a_reply(turn, finish)
    body = responses_body(ASKED) | {"stream": True, "parallel_tool_calls": parallel}
    request = dialect.parse(json.dumps(body).encode())
    client = openai_client(stream_text(dialect, request, reply, data.draw(chunkings(turn))))
    with client.responses.stream(model="policy", input="hi") as stream:
        events = list(stream)
    whole = dialect.reply_body(request, reply, chr)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == f"response.{whole['status']}"
    assert parsed_away(last.response.to_dict(mode="json")["output"]) == parsed_away(whole["output"])
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    grown: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            grown[event.item_id] = grown.get(event.item_id, "") + event.delta
    assert [(item["id"], text_of(item)) for item in done] == [(i["id"], text_of(i)) for i in whole["output"]]
    assert {item["id"]: text_of(item) for item in done if text_of(item)} == grown
    if whole["status"] == "completed":
        final = stream.get_final_response().to_dict(mode="json")
        assert parsed_away(final["output"]) == parsed_away(whole["output"])


def text_of(item: Any) -> str:
    return item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]


def parsed_away(value: Any) -> Any:
    """Without nulls, and without what the SDK's stream helper adds to a reply by parsing it."""
    if isinstance(value, dict):
        shown = {name: inner for name, inner in value.items() if name not in ("parsed", "parsed_arguments")}
        return {name: parsed_away(inner) for name, inner in shown.items() if inner is not None}
    return [parsed_away(inner) for inner in value] if isinstance(value, list) else value


@UNTIMED
@given(st.data(), st.text(alphabet="ab é", min_size=1, max_size=9))
def test_completion_chunks_put_together_are_the_whole_text(data: st.DataObject, text: str) -> None:
    dialect, turn = CompletionsDialect(), Message("assistant", text)
    request = dialect.parse(b'{"prompt": "x", "stream": true, "logprobs": 0}')
    answer = stream_text(dialect, request, a_reply(turn), data.draw(chunkings(turn)))
    chunks = list(openai_client(answer).completions.create(model="policy", prompt="x", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "stop"
    (whole,) = dialect.reply_body(request, a_reply(turn), chr)["choices"]
    given = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs is not None]
    assert [offset for one in given for offset in one.text_offset or ()] == whole["logprobs"]["text_offset"]


def names_of(answer: str) -> list[str]:
    return [line.removeprefix("event: ") for line in answer.splitlines() if line.startswith("event: ")]


TURN = Message("assistant", "hello", (ToolCall("", "run", '{"a": 1}'),), reasoning="hm")


def test_response_events_come_in_the_order_that_openai_documents() -> None:
    dialect = ResponsesDialect()
    request = dialect.parse(json.dumps(responses_body(ASKED) | {"stream": True}).encode())
    chunk = DeltaChunk(tuple(message_deltas(TURN)), (1,), (-0.5,))
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    thinking = [name.replace("output_text", "reasoning_text") for name in text]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    wanted = ["created", "in_progress", *thinking, "output_item.done", *text, "output_item.done", *call, "completed"]
    found = names_of(stream_text(dialect, request, a_reply(TURN), [chunk]))
    assert found == [f"response.{name}" for name in wanted]


def test_message_events_come_in_the_order_that_anthropic_documents() -> None:
    dialect = MessagesDialect()
    body = messages_body(ASKED) | {"stream": True, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    chunk = DeltaChunk(tuple(message_deltas(TURN)), (1,), (-0.5,))
    found = names_of(stream_text(dialect, dialect.parse(json.dumps(body).encode()), a_reply(TURN), [chunk]))
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    blocks = [start, delta, delta, stop, start, delta, stop, start, delta, stop]
    assert found == ["message_start", "ping", *blocks, "message_delta", "message_stop"]


def test_a_freeform_tool_is_a_function_to_the_model_and_freeform_to_the_client() -> None:
    dialect = ResponsesDialect()
    tool = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
    }
    request = dialect.parse(json.dumps({"input": "hi", "tools": [tool], "stream": True}).encode())
    (shown,) = dialect.to_call(request).tools
    assert shown["function"]["parameters"]["required"] == ["input"]
    assert "start: X" in shown["function"]["description"]
    turn = Message("assistant", "", (ToolCall("", "patch", '{"input": "*** Begin"}'),))
    answer = stream_text(dialect, request, a_reply(turn), [DeltaChunk(tuple(message_deltas(turn)), (1,), (-0.5,))])
    events = list(openai_client(answer).responses.create(model="policy", input="hi", stream=True))
    assert "response.custom_tool_call_input.done" in [event.type for event in events]
    (item,) = events[-1].response.output
    assert (item.type, item.input) == ("custom_tool_call", "*** Begin")
    given_back = {"input": [{"role": "user", "content": "hi"}, item.to_dict()], "tools": [tool]}
    again = dialect.to_call(dialect.parse(json.dumps(given_back).encode()))
    assert json.loads(again.messages[1].tool_calls[0].arguments) == {"input": "*** Begin"}


def test_thinking_that_the_client_does_not_want_to_read_comes_back_with_it() -> None:
    dialect = MessagesDialect()
    body = messages_body(ASKED) | {"thinking": {"type": "adaptive", "display": "omitted"}}
    request = dialect.parse(json.dumps(body).encode())
    answer = stream_text(dialect, request, a_reply(TURN), [DeltaChunk(tuple(message_deltas(TURN)), (1,), (-0.5,))])
    with anthropic_client(answer).messages.stream(
        model="p", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        content = stream.get_final_message().to_dict()["content"]
    assert content[0]["thinking"] == ""
    assert content == dialect.reply_body(request, a_reply(TURN), chr)["content"]
    body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": "go on"}]
    again = dialect.to_call(dialect.parse(json.dumps(body).encode()))
    assert again.messages[1].reasoning == "hm"


@pytest.mark.parametrize("dialect", [ChatDialect(), CompletionsDialect(), MessagesDialect(), ResponsesDialect()])
def test_a_stream_that_breaks_ends_with_an_error_in_the_api_s_own_form(dialect: Any) -> None:
    bodies = {"chat": chat_body, "messages": messages_body, "responses": responses_body}
    body = bodies[dialect.name](ASKED) if dialect.name in bodies else {"prompt": "x"}
    writer = dialect.writer(dialect.parse(json.dumps(body).encode()), ReplyHead("a" * 32, 1, "policy", [1]), chr)
    list(writer.begin())
    answer = "".join(writer.fail(GenerationFailed("the engine failed")))
    first = json.loads(answer.partition("data: ")[2].partition("\n")[0])
    found = {
        "chat": lambda: first["error"]["code"],
        "completions": lambda: first["error"]["code"],
        "messages": lambda: (first["type"], first["error"]["type"]),
        "responses": lambda: (first["type"], first["response"]["status"], first["response"]["error"]["code"]),
    }[dialect.name]()
    wanted = {"messages": ("error", "api_error"), "responses": ("response.failed", "failed", "server_error")}
    assert found == wanted.get(dialect.name, "generation_failed")


def test_a_prompt_that_is_too_long_is_said_as_each_api_says_it() -> None:
    error = ContextOverflow("9 tokens where 8 fit", "messages")
    assert ChatDialect().error_body(error)["error"]["code"] == "context_length_exceeded"
    assert ResponsesDialect().error_body(error)["error"]["code"] == "context_length_exceeded"
    told = MessagesDialect().error_body(error)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["message"].startswith("prompt is too long")


def test_only_the_first_call_is_shown_to_a_client_that_takes_no_parallel_calls() -> None:
    turn = Message("assistant", "", (ToolCall("", "run", "{}"), ToolCall("", "read", "{}")))
    chunk = DeltaChunk(tuple(message_deltas(turn)), (1,), (-0.5,))
    once = {"parallel_tool_calls": False}
    choice = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    pairs: list[tuple[Any, Any]] = [
        (ChatDialect(), chat_body(ASKED) | once),
        (ResponsesDialect(), responses_body(ASKED) | once),
        (MessagesDialect(), messages_body(ASKED) | choice),
    ]
    for dialect, body in pairs:
        request = dialect.parse(json.dumps(body).encode())
        assert dialect.to_call(request).parallel_calls is False
        whole = json.dumps(dialect.reply_body(request, a_reply(turn), chr))
        streamed = stream_text(dialect, request, a_reply(turn), [chunk])
        for text in (whole, streamed):
            tools = text.replace(json.dumps(TOOLS), "")
            assert '"name": "run"' in tools or '"name":"run"' in tools
            assert '"call_0123456789abcdef012345671"' not in tools
            assert '"toolu_0123456789abcdef012345671"' not in tools
            assert '"chatcmpl-tool-0123456789abcdef012345671"' not in tools
