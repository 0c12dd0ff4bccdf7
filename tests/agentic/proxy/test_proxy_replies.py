"""Replies read as they are sampled: thinking, text and calls, in whatever pieces the tokens come."""

import json
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_tokens import make_tokenizer

from agentic.proxy.conversation import CallArguments, Message, ReplyDelta, TextDelta, join_deltas
from agentic.proxy.renderers.calls import LONGEST_NAME
from agentic.proxy.renderers.constraints import call_constraint
from agentic.proxy.renderers.detokenizer import LibraryDetokenizer
from agentic.proxy.renderers.forms import HERMES, LLAMA, ReplyForm
from agentic.proxy.renderers.parsers import reply_parser, whole_reply
from agentic.proxy.renderers.tokens import TextTokenizer

TOKENIZER = TextTokenizer(make_tokenizer())
END = TOKENIZER.encode_template("<|im_end|>")[0]
TOOLS = [{"type": "function", "function": {"name": "run"}}]
PLAIN, MAY_THINK, OPENED = ReplyForm("never"), ReplyForm("may"), ReplyForm("opened")
BARE = ReplyForm("never", LLAMA)
FORMS = {"plain": PLAIN, "may think": MAY_THINK, "opened": OPENED, "bare": BARE}
CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'

PIECES = [
    *["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "</think", "<", "\n", " ", ";"],
    *['{"name": "run", "arguments": {"cmd": "ls }"}}', '{"name": "run", "parameters": {"a": ["\\"]", {}]}}'],
    *[
        '{"arguments": {"b": 1}, "name": "a\\u00e9"}',
        '{"name": "run"}',
        '{"name": 3}',
        '{"x": null, ',
        "{",
        "}",
        '"',
        "\\",
    ],
    *["word", "größe", "😀", "\ufffd", CALL, f"<think>\nhm\n</think>\n\n{CALL}"],
]


def parsed(text: str, form: ReplyForm = PLAIN, has_tools: bool = True) -> Message:
    ids = [*TOKENIZER.encode_template(text), END]
    return whole_reply(reply_parser(TOKENIZER, form, TOOLS if has_tools else None, (END,)), ids)


def streamed(
    ids: Sequence[int], cuts: Sequence[int], form: ReplyForm, has_tools: bool = True
) -> list[list[ReplyDelta]]:
    parser = reply_parser(TOKENIZER, form, TOOLS if has_tools else None, (END,))
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [*(parser.feed(ids[start:end]) for start, end in pairwise(edges)), parser.finish()]


def without_ids(message: Message) -> tuple[str, str | None, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.tool_calls]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.lists(st.integers(0, 500), max_size=30),
    st.sampled_from(sorted(FORMS)),
    st.booleans(),
)
def test_the_pieces_of_a_stream_put_together_are_the_whole_parsed_at_once(
    pieces: list[str], cuts: list[int], form: str, has_tools: bool
) -> None:
    text = "".join(pieces)
    ids = [*TOKENIZER.encode_template(text), END]
    deltas = [delta for step in streamed(ids, cuts, FORMS[form], has_tools) for delta in step]
    assert without_ids(join_deltas(deltas)) == without_ids(parsed(text, FORMS[form], has_tools))


@settings(deadline=None)
@given(st.lists(st.integers(0, 255), max_size=40), st.lists(st.integers(0, 100), max_size=10))
def test_a_character_is_never_split_and_bytes_that_are_none_are_replaced_as_by_the_library(
    ids: list[int], cuts: list[int]
) -> None:
    texts = [delta.text for step in streamed(ids, cuts, PLAIN, False) for delta in step if isinstance(delta, TextDelta)]
    assert "".join(texts) == make_tokenizer().decode(ids)
    assert TOKENIZER.decode(ids) == make_tokenizer().decode(ids)


@settings(deadline=None)
@given(st.text(max_size=30), st.lists(st.integers(0, 100), max_size=10))
def test_the_library_s_stream_decoder_gives_the_same_text(text: str, cuts: list[int]) -> None:
    ids = TOKENIZER.encode_content(text)
    detokenizer = LibraryDetokenizer(make_tokenizer(), ())
    given = "".join(detokenizer.feed([token]) for token in ids) + detokenizer.finish()
    assert given == text


def test_the_beginning_of_a_marker_is_kept_until_it_is_one_or_is_not() -> None:
    parser = reply_parser(TOKENIZER, PLAIN, TOOLS, (END,))
    assert parser.feed(TOKENIZER.encode_template("look <tool")) == [TextDelta("look ")]
    assert parser.feed(TOKENIZER.encode_template("_calm> <")) == [TextDelta("<tool_calm> ")]
    assert parser.feed(TOKENIZER.encode_template("tool_call>")) == []
    assert parser.finish() == [TextDelta("<tool_call>")]


def test_text_thinking_and_arguments_come_token_by_token() -> None:
    text = f"<think>\none two\n</think>\n\nlook: {CALL}"
    ids = TOKENIZER.encode_template(text)
    steps = streamed(ids, range(len(ids)), MAY_THINK)
    arguments = [d.text for step in steps for d in step if isinstance(d, CallArguments)]
    assert arguments == list('{"cmd": "ls"}')
    first = next(number for number, step in enumerate(steps) if any(isinstance(d, TextDelta) for d in step))
    assert first == text.index("look") + 1
    assert without_ids(join_deltas([d for step in steps for d in step])) == (
        "look: ",
        "one two",
        [("run", '{"cmd": "ls"}')],
    )


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "run", "arguments": "ls"}</tool_call>',
        "<tool_call>{'name': 'run'}</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "run"',
        '<tool_call>{"name": "run"}</tool_call>',
        '<tool_call>{"name": "run", "argument": {"cmd": "ls"}}</tool_call>',
        "<tool_call>",
        f'<tool_call>{{"{"n" * LONGEST_NAME}": 1, "name": "run", "arguments": {{}}}}</tool_call>',
    ],
)
def test_what_does_not_begin_like_a_call_stays_text(text: str) -> None:
    assert without_ids(parsed(text)) == (text, None, [])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "run", "arguments": {"cmd": "ls"}', '{"cmd": "ls"}'),
        ('{"name": "run", "arguments": {"cmd": "l', '{"cmd": "l'),
        ('{"name": "run", "arguments": {nonsense}}</tool_call>', "{nonsense}"),
        ('{"arguments": {"a": 1}, "name": "run"}</tool_call>', '{"a": 1}'),
        ('{"id": [1, {"x": "}"}], "name": "run", "arguments": {}, "more": 2}</tool_call>', "{}"),
    ],
)
def test_a_call_whose_arguments_began_is_a_call_with_what_was_written(text: str, arguments: str) -> None:
    assert without_ids(parsed(f"<tool_call>{text}")) == ("", None, [("run", arguments)])


def test_a_broken_call_beside_a_good_one_is_text_and_the_good_one_counts() -> None:
    message = parsed(f"first {CALL}\nlost <tool_call>no</tool_call>{CALL} gone")
    assert message.content == "first <tool_call>no</tool_call>"
    assert [call.id for call in message.tool_calls] == ["call_0", "call_1"]


def test_calls_are_looked_for_only_with_tools_and_thinking_only_where_the_template_knows_it() -> None:
    assert parsed(CALL, has_tools=False).content == CALL
    assert parsed("<think>a</think>b").content == "<think>a</think>b"
    assert without_ids(parsed("<think>a</think>b", MAY_THINK)) == ("b", "a", [])
    assert without_ids(parsed("a</think>\n\nb", OPENED)) == ("b", "a", [])
    assert without_ids(parsed("a <think>b</think>", MAY_THINK)) == ("a <think>b</think>", None, [])


def test_a_call_within_thinking_is_a_draft_if_the_thinking_goes_on_and_real_if_it_never_ends() -> None:
    draft = parsed(f"<think>try {CALL} no</think>yes", MAY_THINK)
    assert without_ids(draft) == ("yes", f"try {CALL} no", [])
    assert without_ids(parsed(f"<think>try {CALL}", MAY_THINK)) == ("", "try", [("run", '{"cmd": "ls"}')])


def test_bare_calls_are_read_from_the_beginning_of_a_reply() -> None:
    one, two = '{"name": "a", "parameters": {"x": 1}}', '{"name": "b", "parameters": {}}'
    expected = ("", None, [("a", '{"x": 1}'), ("b", "{}")])
    assert without_ids(parsed(f"{one}; {two}", BARE)) == expected
    assert without_ids(parsed(f"<|python_tag|>{one};{two}", BARE)) == expected
    for text in ('{"x": 1}', "{ no", f"see {one}"):
        assert without_ids(parsed(text, BARE)) == (text, None, [])


def test_a_long_reply_costs_a_constant_time_for_each_token() -> None:
    def seconds(count: int) -> float:
        body = json.dumps({"name": "write", "arguments": {"text": 'line "x" {\n' * count}})
        ids = TOKENIZER.encode_template(f"<tool_call>{body}</tool_call>")
        begin = time.process_time()
        streamed(ids, range(len(ids)), PLAIN)
        return (time.process_time() - begin) / len(ids)

    seconds(50)
    assert min(seconds(800) for _ in range(3)) < 3 * max(seconds(50) for _ in range(3))


def test_a_forced_call_is_described_for_the_engine_and_its_form_is_what_is_read() -> None:
    tools = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
    constraint = call_constraint(HERMES, tools, parallel=False)
    assert constraint is not None
    form = json.loads(constraint["structural_tag"])["format"]
    (tag,) = form["tags"]
    assert form["stop_after_first"]
    assert without_ids(parsed(tag["begin"] + "{}" + tag["end"])) == ("", None, [("run", "{}")])
    assert call_constraint(LLAMA, tools, parallel=True) is None
    bare = call_constraint(LLAMA, tools, parallel=False)
    assert bare is not None
    assert bare["json"]["required"] == ["name", "parameters"]
