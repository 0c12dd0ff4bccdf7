"""One conversation, three APIs: the same messages come out, and so the same tokens are found again."""

import json

from dialect_writing import TOOLS, assistant_turns, chat_body, conversations, messages_body, responses_body
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.proxy.conversation import Message, conversation_keys
from agentic.proxy.dialects import chat, messages, responses
from agentic.proxy.dialects.base import CallReply, CallRequest

UNTIMED = settings(deadline=None)


def calls_of(conversation: list[Message]) -> list[CallRequest]:
    """The conversation as it comes out of each API."""
    chat_call = chat.to_call(chat.parse_body(json.dumps(chat_body(conversation)).encode()))
    messages_call = messages.to_call(messages.parse_body(json.dumps(messages_body(conversation)).encode()))
    responses_call = responses.to_call(responses.parse_body(json.dumps(responses_body(conversation)).encode()))
    return [chat_call, messages_call, responses_call]


@UNTIMED
@given(conversations())
def test_a_conversation_is_the_same_messages_by_every_api(conversation: list[Message]) -> None:
    for call in calls_of(conversation):
        assert list(call.messages) == conversation
        assert list(call.tools) == TOOLS


@UNTIMED
@given(conversations())
def test_a_conversation_has_the_same_keys_by_every_api(conversation: list[Message]) -> None:
    keys = [conversation_keys(call.messages, call.tools) for call in calls_of(conversation)]
    assert keys[0] == keys[1] == keys[2]


@UNTIMED
@given(conversations(), assistant_turns(100))
def test_a_reply_that_is_given_back_is_the_turn_that_was_sampled(conversation: list[Message], turn: Message) -> None:
    reply = CallReply("a" * 32, 1, "policy", turn, "stop", None, [1], [2], [-0.5])
    wanted = conversation_keys([*conversation, turn], TOOLS)[-1]
    chat_request = chat.parse_body(json.dumps(chat_body(conversation)).encode())
    (choice,) = chat.reply_body(chat_request, reply, chr)["choices"]
    chat_next = chat_body(conversation)
    chat_next["messages"].append(choice["message"])

    messages_next = messages_body(conversation) | {"thinking": {"type": "adaptive"}}
    messages_request = messages.parse_body(json.dumps(messages_next).encode())
    content = messages.reply_body(messages_request, reply)["content"]
    messages_next["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": "x"}]

    responses_next = responses_body(conversation)
    responses_request = responses.parse_body(json.dumps(responses_next).encode())
    responses_next["input"] += responses.reply_body(responses_request, reply)["output"]

    given_back = [
        chat.to_call(chat.parse_body(json.dumps(chat_next).encode())),
        messages.to_call(messages.parse_body(json.dumps(messages_next).encode())),
        responses.to_call(responses.parse_body(json.dumps(responses_next).encode())),
    ]
    for call in given_back:
        assert wanted in conversation_keys(call.messages, call.tools)
        (own,) = [m for m in call.messages[len(conversation) :] if m.role == "assistant"]
        assert own.reasoning == turn.reasoning


@UNTIMED
@given(st.sampled_from(["developer", "system"]), st.sampled_from(["developer", "system"]))
def test_system_texts_at_the_start_are_one(first: str, second: str) -> None:
    opening = [{"role": first, "content": "a"}, {"role": second, "content": "b"}, {"role": "user", "content": "c"}]
    merged = [Message("system", "a\n\nb"), Message("user", "c")]
    assert list(chat.to_call(chat.parse_body(json.dumps({"messages": opening}).encode())).messages) == merged
    body = {"input": opening, "store": False}
    assert list(responses.to_call(responses.parse_body(json.dumps(body).encode())).messages) == merged
