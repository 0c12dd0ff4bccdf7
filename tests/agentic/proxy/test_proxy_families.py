"""Families whose calls only the library reads: their thinking and text stream all the same.

Faked is the vocabulary: one token a byte, and the special tokens that the families' renderers look up.
"""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_tokens import make_tokenizer
from tokenizers import AddedToken

from agentic.proxy.conversation import ReasoningDelta, ReplyDelta, TextDelta, join_deltas
from agentic.proxy.renderers.library import CALL_SIGNS, LibraryRenderer, LibraryTokenizer
from agentic.proxy.renderers.tokens import TextTokenizer, TokenizerFiles

SPECIAL = [
    *["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|begin_of_image|>", "/nothink"],
    *["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
    *["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"],
]
ADDED = [
    *["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    *["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
        },
    }
]
XML = "<tool_call>\n<function=run>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>run\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>"
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="run">\n<parameter name="cmd">ls</parameter>\n</invoke>\n</minimax:tool_call>'
)
PIECES = ["</think>", "<think>", "text", "größe", "\n", " ", "<tool", "<tool_call>", XML, GLM, MINIMAX, "</tool_call>"]


def call_of(family: str) -> str:
    return GLM if family.startswith("glm") else MINIMAX if family == "minimax-m2" else XML


@cache
def renderer_of(family: str) -> LibraryRenderer:
    import renderers

    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    files = TokenizerFiles("", {"eos_token": "<|im_end|>"})
    shown = LibraryTokenizer("some/model", TextTokenizer(tokenizer), files)
    built = renderers.create_renderer(shown, renderers.config_from_name(family))
    return LibraryRenderer(built, shown, family)


def streamed(renderer: LibraryRenderer, ids: list[int], cuts: list[int], has_tools: bool = True) -> list[ReplyDelta]:
    parser = renderer.stream_parser(TOOLS if has_tools else None)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [*(delta for start, end in pairwise(edges) for delta in parser.feed(ids[start:end])), *parser.finish()]


@settings(deadline=None)
@given(
    st.sampled_from(sorted(CALL_SIGNS)),
    st.lists(st.sampled_from(PIECES), max_size=6),
    st.lists(st.integers(0, 300), max_size=20),
    st.booleans(),
)
def test_a_stream_put_together_is_the_whole_reply(
    family: str, pieces: list[str], cuts: list[int], has_tools: bool
) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode("".join(pieces))
    joined = join_deltas(streamed(renderer, ids, cuts, has_tools))
    whole = renderer.parse(ids, TOOLS if has_tools else None)
    assert (joined.content, joined.reasoning) == (whole.content, whole.reasoning)
    assert [(c.name, c.arguments) for c in joined.tool_calls] == [(c.name, c.arguments) for c in whole.tool_calls]


@pytest.mark.parametrize("family", sorted(CALL_SIGNS))
def test_thinking_and_text_come_as_they_are_sampled_and_calls_at_the_end(family: str) -> None:
    renderer = renderer_of(family)
    thinking = "hm\n</think>\n\nlook: "
    opened = renderer.parse(renderer.encode("a</think>b"), None).reasoning == "a"
    parser = renderer.stream_parser(TOOLS)
    before = parser.feed(renderer.encode(thinking if opened else "<think>\n" + thinking))
    assert before == [ReasoningDelta("hm"), TextDelta("look:")] or before == [ReasoningDelta("hm"), TextDelta("look: ")]
    assert parser.feed(renderer.encode(call_of(family))) == []
    message = join_deltas([*before, *parser.finish()])
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("run", '{"cmd": "ls"}')]
    assert (message.content.strip(), message.reasoning) == ("look:", "hm")


@pytest.mark.parametrize("family", sorted(CALL_SIGNS))
def test_what_the_library_reads_as_no_call_stays_text(family: str) -> None:
    renderer = renderer_of(family)
    broken = f"{CALL_SIGNS[family]}nonsense"
    ids = renderer.encode(f"<think>\nhm\n</think>\n\nlook {broken}")
    message = renderer.parse(ids, TOOLS)
    assert message.tool_calls == ()
    assert broken in message.content
    assert message.reasoning == "hm"
