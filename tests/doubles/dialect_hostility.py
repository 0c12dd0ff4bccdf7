"""Requests gone wrong: a good body of each API with something in it exchanged, dropped or nested, and bytes that are
no JSON at all. Everything here is made up; what is real is the server that gets it."""

import copy
import json
from typing import Any

from dialect_writing import chat_body, messages_body, responses_body
from hypothesis import strategies as st

from agentic.proxy.conversation import Message, ToolCall

CALL = ToolCall("call-0", "run", '{"cmd": "ls"}')
CONVERSATION = [
    Message("system", "be brief"),
    Message("user", "hi"),
    Message("assistant", "I look", (CALL,), reasoning="hm"),
    Message("tool", "ok", tool_call_id="call-0"),
    Message("user", "go on"),
]

GOOD: dict[str, dict[str, Any]] = {
    "/chat/completions": chat_body(CONVERSATION)
    | {"tool_choice": "auto", "response_format": {"type": "text"}, "stop": ["x"], "max_tokens": 9, "n": 1},
    "/messages": messages_body(CONVERSATION)
    | {"tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"}, "stop_sequences": ["x"], "metadata": {}},
    "/messages/count_tokens": messages_body(CONVERSATION),
    "/responses": responses_body(CONVERSATION)
    | {"tool_choice": "auto", "text": {"format": {"type": "text"}}, "include": [], "reasoning": {}, "metadata": {}},
    "/completions": {"prompt": [72, 105], "max_tokens": 9, "logprobs": 0, "stop": ["x"], "n": 1},
}
"""By path below /v1."""

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(
        ["", "auto", "\ufdd0", "<|im_end|>", "[" * 20000, '{"a":' * 20000, '{"a": "\\ud800"}', "9" * 5000]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


@st.composite
def spoiled_bodies(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A good body in which one to three places have another value or none."""
    body = copy.deepcopy(GOOD[path])
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(body))
        holder, key = draw(st.sampled_from(places)) if places else (body, "model")
        if draw(st.booleans()) and isinstance(holder, dict):
            holder.pop(key, None)
        else:
            holder[key] = draw(VALUES)
    return body


def spoiled_bytes(path: str) -> st.SearchStrategy[bytes]:
    """Bodies that are not quite JSON, or more than JSON says."""
    good = json.dumps(GOOD[path]).encode()
    deep = b"[" * 5000 + b"]" * 5000
    text = good.replace(b'"hi"', b'"\\ud83d"').replace(b'"go on"', b'"\\udc00x"')
    fixed = [b"", b"null", b"[]", b"3", b'"x"', b"\xff\xfe", good[:-1], good + b"}", deep, text]
    fixed += [good.replace(b"9", number) for number in (b"NaN", b"Infinity", b"1e999", b"9" * 500, b"-0", b"1E400")]
    fixed.append(b'{"messages": ' + deep + b"," + good[1:])
    fixed.append(good[:-1] + b"," + good[1:])
    return st.sampled_from(fixed) | st.binary(max_size=30)


def _places(value: Any) -> Any:
    """Each place in a body, as its holder and key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
