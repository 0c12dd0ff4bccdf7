"""One conversation as the JSON of each API, the way a client of that API would write it, and conversations to write.

It fakes clients, nothing else: the bodies go through the real dialects.
"""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from agentic.proxy.conversation import Message, ToolCall

type Body = dict[str, Any]

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": {"type": "object"}}}
    for name in ("run", "read")
]
"""Two tools as chat completions have them, and as the model is shown them."""


def chat_body(messages: Sequence[Message]) -> Body:
    """As a chat completions client writes it."""
    return {"model": "policy", "messages": [_chat_message(m) for m in messages], "tools": TOOLS}


def messages_body(messages: Sequence[Message]) -> Body:
    """As an Anthropic client writes it: system apart, results inside user messages."""
    body: Body = {"model": "policy", "max_tokens": 50, "messages": [], "tools": [_anthropic_tool(t) for t in TOOLS]}
    for number, message in enumerate(messages):
        if message.role == "system" and number == 0:
            body["system"] = [{"type": "text", "text": message.content, "cache_control": {"type": "ephemeral"}}]
            continue
        role = "user" if message.role == "tool" else message.role
        blocks = _blocks(message)
        after_result = number > 0 and messages[number - 1].role == "tool" and role == "user"
        if after_result:
            body["messages"][-1]["content"] += blocks
        else:
            body["messages"].append({"role": role, "content": blocks})
    return body


def responses_body(messages: Sequence[Message]) -> Body:
    """As a Responses client writes it: an item for each piece, instructions apart."""
    body: Body = {"model": "policy", "input": [], "store": False, "tools": [_flat_tool(tool) for tool in TOOLS]}
    for number, message in enumerate(messages):
        if message.role == "system" and number == 0:
            body["instructions"] = message.content
        else:
            body["input"] += _items(message)
    return body


def _chat_message(message: Message) -> Body:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    written: Body = {"role": message.role, "content": message.content}
    if message.role == "user":
        written["content"] = [{"type": "text", "text": message.content}]
    if message.reasoning:
        written["reasoning"] = message.reasoning
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return written


def _blocks(message: Message) -> list[Body]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
    blocks: list[Body] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": "any"})
    if message.content or message.role != "assistant":
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


def _items(message: Message) -> list[Body]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    if message.role != "assistant":
        return [{"role": message.role, "content": [{"type": "input_text", "text": message.content}]}]
    items: list[Body] = []
    if message.reasoning:
        part = {"type": "reasoning_text", "text": message.reasoning}
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]})
    if message.content or not message.tool_calls:
        part = {"type": "output_text", "text": message.content, "annotations": []}
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "content": [part]})
    for call in message.tool_calls:
        fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": "fc_1", "status": "completed"} | fields)
    return items


def _anthropic_tool(tool: Body) -> Body:
    function = tool["function"]
    return {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}


def _flat_tool(tool: Body) -> Body:
    return {"type": "function", "strict": False} | tool["function"]


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ARGUMENTS = st.dictionaries(st.sampled_from(["cmd", "path"]), TEXTS | st.integers(-5, 5), max_size=2)


@st.composite
def assistant_turns(draw: st.DrawFn, first_call: int = 0) -> Message:
    """A turn as a renderer parses it, with ids for its calls."""
    content = draw(st.just("") | TEXTS.filter(str.strip))
    names = draw(st.lists(st.sampled_from(["run", "read"]), max_size=3, min_size=0 if content else 1))
    calls = tuple(
        ToolCall(f"call-{first_call + n}", name, json.dumps(draw(ARGUMENTS), ensure_ascii=False, separators=(",", ":")))
        for n, name in enumerate(names)
    )
    return Message("assistant", content, calls, reasoning=draw(st.none() | TEXTS))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A conversation that an agent may have had: each call answered, the user last."""
    messages = [Message("system", draw(TEXTS))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(TEXTS)))
    made = 0
    for _ in range(draw(st.integers(0, 3))):
        turn = draw(assistant_turns(made))
        made += len(turn.tool_calls)
        messages.append(turn)
        for call in turn.tool_calls:
            messages.append(Message("tool", draw(TEXTS), tool_call_id=call.id, name=call.name))
        if not turn.tool_calls or draw(st.booleans()):
            messages.append(Message(draw(st.sampled_from(["user", "user", "system"])), draw(TEXTS)))
    return messages
