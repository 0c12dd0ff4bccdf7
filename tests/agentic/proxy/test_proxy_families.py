"""Families whose calls are tags and no JSON: thinking, text and each argument stream, and the sum is the whole reading.

Faked is the vocabulary: one token a byte, and the special tokens that the families' renderers look up.
"""

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from family_rig import (
    BY_VALUE,
    FAMILIES,
    MARKED,
    TAGGED,
    TOOLS,
    library_of,
    marked,
    marks_of,
    renderer_of,
    shown_tokenizer,
    streamed,
    thought,
    written,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.proxy.conversation import (
    CallArguments,
    CallStart,
    Message,
    ReasoningDelta,
    ReplyDelta,
    TextDelta,
    join_deltas,
)
from agentic.proxy.renderers import harmony
from agentic.proxy.renderers.forms import (
    ARGUMENT_TAGS,
    DEEPSEEK,
    DSML,
    GEMMA,
    HUNYUAN,
    INKLING,
    KIMI,
    XML,
    ReplyForm,
    form_of,
)
from agentic.proxy.renderers.library import MESSAGES, OWN_FORMS, LibraryRenderer
from agentic.proxy.renderers.parsers import SampledReplyParser, reply_parser, whole_reply

strings = st.text(st.sampled_from('ab \n\t"\\<>/é😀{}'), max_size=12) | st.sampled_from(
    ["<param", "</parameter", "</arg_value", "12", "null"]
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "cmd": strings,
        "old": strings,
        "count": st.integers(),
        "paths": st.lists(strings, max_size=2),
        "either": st.integers() | st.sampled_from(["x", "no JSON {"]),
    },
)
calls = st.lists(st.tuples(st.just("run"), arguments) | st.just(("stop", {})), min_size=1, max_size=3)
WRITTEN = ("qwen3.5", "glm-5", "minimax-m2", "deepseek-v4", "hy3", "gemma4", "inkling")
CMD, COUNT = f'{DSML.key_open}cmd" string="true">', f'{DSML.key_open}count" string="false">'
INVOKED = f'{DSML.name_open}run">\n'
PIECES = [
    *[
        "</think>",
        "<think>",
        "text",
        "größe",
        "\n",
        " ",
        "<tool",
        "<tool_call>",
        "</tool_call>",
        "nonsense",
        "run",
        "stop",
    ],
    *["<function=run>", "<function=", "</function>", "<parameter=cmd>", "<parameter=count>", "</parameter>", ">", "7"],
    *["<arg_key>", "cmd", "count", "</arg_key>", "<arg_value>", "</arg_value>", "x" * 257],
    *["<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="run">', "</invoke>", '<parameter name="cmd">'],
    *HUNYUAN.markers,
    *DSML.markers,
    *[f'{DSML.name_open}run">', CMD, COUNT],
    *GEMMA.markers,
    *["<|channel>", "<channel|>", "thought\n", "call:", "call:run{", "cmd:", "{", "}", "[", "]", ",", ":"],
    *INKLING.markers,
    *['{"name":"run",', '"args":{"cmd":"ls"}}', '"args":'],
    *(written(family, [("run", {"cmd": "ls\n", "count": 3})]) for family in WRITTEN),
]


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(FAMILIES),
    st.lists(st.sampled_from(PIECES), max_size=16),
    st.lists(st.integers(0, 1000), max_size=30),
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


@settings(deadline=None)
@given(st.sampled_from(FAMILIES), calls, st.lists(st.integers(0, 1000), max_size=30))
def test_arguments_that_were_written_come_back_whatever_the_pieces(
    family: str, asked: list[tuple[str, dict[str, Any]]], cuts: list[int]
) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode(f"{thought(family, 'hm')}look{written(family, asked)}")
    message = join_deltas(streamed(renderer, ids, cuts))
    space = (",", ":") if family in MESSAGES else (", ", ": ")
    assert (message.content, message.reasoning) == ("look", "hm")
    assert [(c.name, c.arguments) for c in message.tool_calls] == [
        (name, json.dumps(own, ensure_ascii=False, separators=space)) for name, own in asked
    ]


@settings(deadline=None)
@given(st.sampled_from(FAMILIES), calls)
def test_the_library_reads_the_same_calls_but_for_white_space_around_values(
    family: str, asked: list[tuple[str, dict[str, Any]]]
) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode(f"{thought(family, 'hm')}look{written(family, asked)}")
    opening = renderer.render([Message("user", ".")], None)
    theirs = library_of(family).parse_response(ids, tools=TOOLS, prompt_ids=opening)
    ours = renderer.parse(ids, TOOLS)
    assert [(c.name, _stripped(json.loads(c.arguments))) for c in ours.tool_calls] == [
        (c.name, _stripped(c.arguments)) for c in theirs.tool_calls
    ]
    assert (ours.content, ours.reasoning) == (theirs.content.strip(), theirs.reasoning_content.strip())


def _stripped(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value.strip() if isinstance(value, str) else value for key, value in arguments.items()}


def pieces_of(family: str) -> list[str]:
    """How the arguments of the next test come when each token comes alone."""
    if family in MESSAGES:
        return list('{"cmd":"make test","count":3}')
    if family in TAGGED:
        return ['{"cmd": "', *"make test", '"', ', "count": ', "3", "}"]
    return ["{", '"cmd": ', '"', *"make test", '"', ", ", '"count": ', "3}"]


@pytest.mark.parametrize("family", FAMILIES)
def test_thinking_text_and_arguments_come_as_they_are_sampled(family: str) -> None:
    renderer = renderer_of(family)
    marks = marks_of(family)
    opened = renderer.parse(renderer.encode(f"a{marks.closing}b"), None).reasoning == "a"
    call = written(family, [("run", {"cmd": "make test", "count": 3})])
    ids = renderer.encode(thought(family, "hm").removeprefix(marks.opening if opened else "") + f"look: {call}")
    parser = renderer.stream_parser(TOOLS)
    steps = [parser.feed([token]) for token in ids]
    deltas = [delta for step in steps for delta in step]
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == "hm"
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "look: "
    assert [d.name for d in deltas if isinstance(d, CallStart)] == ["run"]
    pieces = [d.text for d in deltas if isinstance(d, CallArguments)]
    assert pieces == pieces_of(family)
    assert parser.finish() == []


@pytest.mark.parametrize("family", BY_VALUE)
@pytest.mark.parametrize(
    "broken", ["nonsense", "", "nonsense{closing}", "<function=>{closing}", "{long}<function=run>"]
)
def test_what_is_no_call_stays_text(family: str, broken: str) -> None:
    renderer = renderer_of(family)
    form = OWN_FORMS[family].calls
    broken = form.opening + broken.replace("{closing}", form.closing or "").replace("{long}", "<function=" + "x" * 300)
    ids = renderer.encode(f"{thought(family, 'hm')}look {broken}")
    message = renderer.parse(ids, TOOLS)
    assert message.tool_calls == ()
    assert message.content == f"look {broken}"
    assert message.reasoning == "hm"


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        ("qwen3.5", "<tool_call><function=run><parameter=cmd>\nls -", '{"cmd": "ls -'),
        ("qwen3.5", "<tool_call><function=run><parameter=count>\n3\n</parameter>", '{"count": 3'),
        ("qwen3.5", "<tool_call><function=run><parameter=count>x</parameter></tool_call>", '{"count": "x"}'),
        ("qwen3.5", "<tool_call><function=run><parameter=other>NaN</parameter></tool_call>", '{"other": "NaN"}'),
        ("qwen3.5", "<tool_call><function=run><parameter=other>1e999</parameter></tool_call>", '{"other": "1e999"}'),
        (
            "qwen3.5",
            "<tool_call><function=run><parameter=other>[-1e999]</parameter></tool_call>",
            '{"other": "[-1e999]"}',
        ),
        ("qwen3.5", "<tool_call><function=run><parameter=cmd>a</parameter><parameter=cmd>b</parameter></tool_call>",
         '{"cmd": "a"}'),
        ("qwen3.5", "<tool_call><function=run></tool_call>", "{}"),
        ("glm-5", "<tool_call>other<arg_key>cmd</arg_key><arg_value>ls\n</arg_value></tool_call>", '{"cmd": "ls\\n"}'),
        ("glm-5", "<tool_call>run<arg_key>cmd</arg_key></tool_call>", None),
        ("minimax-m2", '<minimax:tool_call><invoke name="run"><parameter name="cmd">ls', '{"cmd": "ls'),
        ("deepseek-v4", f"{DSML.opening}\n{INVOKED}{CMD}ls", '{"cmd": "ls'),
        ("deepseek-v4", f"{INVOKED}{CMD}ls{DSML.value_end}\n{DSML.call_end}", '{"cmd": "ls"}'),
        ("deepseek-v4", f'{INVOKED}{DSML.key_open}cmd">1{DSML.value_end}', '{"cmd": "1"'),
        ("deepseek-v4", f"{INVOKED}{COUNT}x{DSML.value_end}", '{"count": "x"'),
        ("deepseek-v4", f"{INVOKED}{CMD.replace('cmd', 'count')}3{DSML.value_end}", '{"count": "3"'),
        ("hy3", written("hy3", [("run", {"cmd": "ls"})]).partition("</arg_value")[0], '{"cmd": "ls'),
        ("hy3", written("hy3", [("run", {"cmd": "ls"})]).replace(HUNYUAN.opening, ""), '{"cmd": "ls"}'),
        ("hy3", written("hy3", [("run", {"cmd": "ls"})]).replace(HUNYUAN.name_end, ""), '{"cmd": "ls"}'),
        ("hy3", written("hy3", [("run", {})]).replace(HUNYUAN.name_end, ""), "{}"),
        ("hy3", f"{HUNYUAN.name_open}run{HUNYUAN.name_end}", None),
        ("gemma4", '<|tool_call>call:run{cmd:<|"|>ls', '{"cmd": "ls'),
        ("gemma4", '<|tool_call>call:run{count:3', '{"count": 3'),
        ("gemma4", '<|tool_call>call:run{cmd:<|"|>a<|"|>,count:3<tool_call|>', '{"cmd": "a", "count": 3'),
        ("gemma4", '<|tool_call>call:run{cmd:<|"|>a<|"|> count:3}<tool_call|>', '{"cmd": "a"count:3}'),
        ("gemma4", '<|tool_call>call:run{cmd: ls , x:[true,NaN,{<|"|>y<|"|>:null}]}<tool_call|>',
         '{"cmd": "ls", "x": [true, "NaN", {"y": null}]}'),
        ("gemma4", "<|tool_call>call:run{cmd}<tool_call|>", '{"cmd"}'),
        ("gemma4", "<|tool_call>call:run{count:}<tool_call|>", '{"count": }'),
        ("gemma4", "<|tool_call>call:run{}}<tool_call|>", "{}}"),
        ("gemma4", "<|tool_call>call:run{}\n<tool_call|>", "{}"),
        ("gemma4", "<|tool_call>call:{}<tool_call|>", None),
        ("gemma4", "<|tool_call>run{}<tool_call|>", None),
        ("inkling", '<|message_model|>run<|content_invoke_tool_json|>{"name":"run","args":{"cmd":"l', '{"cmd":"l'),
        ("inkling", '<|message_model|>run<|content_invoke_tool_text|>{"args":{"cmd":"ls"}}','{"cmd":"ls"}'),
        ("inkling", 'run<|content_invoke_tool_json|>{"name":"run"}<|end_message|>', None),
        ("inkling", "run<|content_invoke_tool_json|>ls<|end_message|>", None),
    ],
)  # fmt: skip
def test_a_call_that_is_not_whole_is_as_open_as_it_was_written(family: str, text: str, arguments: str | None) -> None:
    renderer = renderer_of(family)
    message = renderer.parse(renderer.encode(thought(family, "") + text), TOOLS)
    assert [call.arguments for call in message.tool_calls] == ([] if arguments is None else [arguments])


@pytest.mark.parametrize("family", ["qwen3", "qwen3-vl"])
def test_families_whose_calls_are_json_stream_them_as_they_are_written(family: str) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode('look <tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>')
    parser = renderer.stream_parser(TOOLS)
    deltas = [delta for token in ids for delta in parser.feed([token])]
    assert [d.text for d in deltas if isinstance(d, CallArguments)] == list('{"cmd": "ls"}')
    assert [d.name for d in deltas if isinstance(d, CallStart)] == ["run"]


@pytest.mark.timeout(180)  # xgrammar loads torch and transformers, which takes its time on a busy machine
@pytest.mark.parametrize("family", [*FAMILIES, *MARKED])
@pytest.mark.parametrize("parallel", [False, True])
def test_what_an_engine_is_held_to_is_what_is_read_as_a_call(family: str, parallel: bool) -> None:
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string as accepts

    renderer = renderer_of(family)
    constraint = renderer.tool_constraint(TOOLS[:1], parallel)
    assert constraint is not None
    grammar = Grammar.from_structural_tag(constraint["structural_tag"])
    own = {"cmd": "ls", "count": 3}
    text = written(family, [("run", own)]) if family in FAMILIES else marked(family, [("run", json.dumps(own))])
    text = text.removeprefix(INKLING.end + INKLING.start)
    assert accepts(grammar, text), text
    assert not accepts(grammar, "text"), "nothing else is let through"
    assert not accepts(grammar, text.replace("run", "stop")), "no other tool is"
    read = renderer.parse(renderer.encode(f"{marks_of(family).opening}{marks_of(family).closing}{text}"), TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in read.tool_calls] == [("run", own)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("family", ["deepseek-v4", "gemma4", "hy3", "inkling"])
@pytest.mark.parametrize("parallel", [False, True])
def test_several_calls_are_let_through_where_they_may_be(family: str, parallel: bool) -> None:
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string as accepts

    renderer = renderer_of(family)
    constraint = renderer.tool_constraint(TOOLS[:1], parallel) or {}
    calls = [("run", {"cmd": "a < b\n"}), ("run", {"count": 3, "paths": ["x"]})]
    text = written(family, calls).removeprefix(INKLING.end + INKLING.start)
    assert accepts(Grammar.from_structural_tag(constraint["structural_tag"]), text) is parallel
    read = renderer.parse(renderer.encode(text), TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in read.tool_calls] == calls


@pytest.mark.timeout(180)
def test_the_parameters_of_a_form_without_a_style_are_held_to_their_schema() -> None:
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string as accepts

    mode, note = {"type": "string", "enum": ["r", "w"]}, {"type": "string"}
    schema = {
        "properties": {"mode": mode, "at": {"$ref": "#/$defs/at"}, "note": note},
        "required": ["mode", "at"],
        "$defs": {"at": {"type": "integer"}},
    }
    tools = [{"type": "function", "function": {"name": "open", "parameters": schema}}, {"function": {"name": "stop"}}]
    constraint = renderer_of("hy3").tool_constraint(tools, False) or {}
    grammar = Grammar.from_structural_tag(constraint["structural_tag"])
    good: list[dict[str, Any]] = [{"mode": "r", "at": 3}, {"mode": "w", "at": 3, "note": "x"}]
    bad: list[dict[str, Any]] = [{"mode": "x", "at": 3}, {"mode": "r"}, {"mode": "r", "at": "no"}, {"at": 3}]
    assert all(accepts(grammar, written("hy3", [("open", own)])) for own in good)
    assert not any(accepts(grammar, written("hy3", [("open", own)])) for own in bad)
    assert accepts(grammar, written("hy3", [("stop", {})]))


def test_every_family_of_the_library_has_a_reader_here() -> None:
    from renderers.base import MODEL_RENDERER_MAP

    assert set(MODEL_RENDERER_MAP.values()) == {*OWN_FORMS, *MESSAGES, "gpt-oss"}


def test_a_family_without_a_reader_is_read_by_the_library_at_the_end() -> None:
    renderer = LibraryRenderer(library_of("gemma4"), shown_tokenizer(), "of a later version")
    ids = renderer.encode(f"{thought('gemma4', 'hm')}look{written('gemma4', [('run', {'cmd': 'ls'})])}")
    parser = renderer.stream_parser(TOOLS)
    assert [delta for token in ids for delta in parser.feed([token])] == []
    read = join_deltas(parser.finish())
    assert (read.content, read.reasoning) == ("look", "hm")
    assert [(call.name, call.arguments) for call in read.tool_calls] == [("run", '{"cmd": "ls"}')]
    broken = renderer.encode("look<|tool_call>call:run{<tool_call|>")
    assert (renderer.parse(broken, TOOLS).content, renderer.parse(broken, TOOLS).tool_calls) == ("lookcall:run{", ())
    assert renderer.tool_constraint(TOOLS, False) is None


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["plain", " text"], [[], [TextDelta("plain text")]]),
        (["run", "<|content_text|>", "a"], [[], [TextDelta("run")], [TextDelta("a")]]),
        (["<|content_text|>a", "<|content_thinking|>", "b"], [[TextDelta("a")], [], [ReasoningDelta("b")]]),
        (["n" * 300, "n"], [[TextDelta("n" * 300)], [TextDelta("n")]]),
        (["run<|content_invoke_tool_json|>", "ls", "<|end_message|>"], [[], [], [TextDelta("runls")]]),
        (["<|content_text|>a<|end_message|>", "b c"], [[TextDelta("a")], [TextDelta("b c")]]),
    ],
)
def test_text_between_inkling_s_messages_is_kept_only_as_long_as_it_may_be_a_name(
    pieces: list[str], expected: list[list[ReplyDelta]]
) -> None:
    renderer = renderer_of("inkling")
    parser = renderer.stream_parser(TOOLS)
    assert [parser.feed(renderer.encode(piece)) for piece in pieces] == expected
    assert parser.finish() == []


@pytest.mark.parametrize("family", FAMILIES)
def test_without_tools_nothing_is_a_call(family: str) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode(f"{thought(family, 'hm')}look{written(family, [('run', {'cmd': 'ls'})])}")
    read = renderer.parse(ids, None)
    assert (read.reasoning, read.tool_calls) == ("hm", ())
    assert read.content.startswith("look")
    assert "ls" in read.content


MARKED_PIECES = [
    *[
        "<think>",
        "</think>",
        "text",
        "\n",
        "{",
        "}",
        '{"cmd": "ls"}',
        "run",
        "functions.run:0",
        "\n```json\n",
        "\n```",
        "x" * 257,
    ],
    *KIMI.markers,
    *DEEPSEEK.markers,
    *(marked(family, [("run", '{"cmd": "a"}'), ("stop", "{}")]) for family in ("kimi-k2", "deepseek-v3")),
]


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(MARKED),
    st.lists(st.sampled_from(MARKED_PIECES), max_size=14),
    st.lists(st.integers(0, 900), max_size=30),
)
def test_a_stream_of_marked_calls_put_together_is_the_whole_reply(
    family: str, pieces: list[str], cuts: list[int]
) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode("".join(pieces))
    joined, whole = join_deltas(streamed(renderer, ids, cuts)), renderer.parse(ids, TOOLS)
    assert (joined.content, joined.reasoning) == (whole.content, whole.reasoning)
    assert [(c.name, c.arguments) for c in joined.tool_calls] == [(c.name, c.arguments) for c in whole.tool_calls]


@pytest.mark.parametrize("family", MARKED)
def test_marked_calls_come_as_they_are_sampled_and_as_the_library_reads_them(family: str) -> None:
    renderer = renderer_of(family)
    opening = renderer.render([Message("user", ".")], None)
    opened = renderer.parse(renderer.encode("a</think>b"), None).reasoning == "a"
    calls = [("run", '{"cmd": "ls ```"}'), ("stop", "{}")]
    ids = renderer.encode(("" if opened else "<think>") + f"hm</think>look{marked(family, calls)}")
    parser = renderer.stream_parser(TOOLS)
    deltas = [delta for token in ids for delta in parser.feed([token])]
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "look"
    pieces = [d.text for d in deltas if isinstance(d, CallArguments) and d.index == 0]
    assert len(pieces) >= len('{"cmd": "ls"}')
    whole = join_deltas([*deltas, *parser.finish()])
    assert [(call.name, call.arguments) for call in whole.tool_calls] == calls
    theirs = library_of(family).parse_response(ids, tools=TOOLS, prompt_ids=opening)
    assert [(call.name, json.dumps(call.arguments)) for call in theirs.tool_calls] == calls
    assert (theirs.content, theirs.reasoning_content) == (whole.content, whole.reasoning)


@pytest.mark.parametrize("family", MARKED)
def test_marked_arguments_that_are_no_object_are_text_and_open_ones_stay_open(family: str) -> None:
    renderer = renderer_of(family)
    no_call = marked(family, [("run", "ls")])
    assert renderer.parse(renderer.encode(f"<think></think>{no_call}"), TOOLS).content == no_call
    cut = marked(family, [("run", '{"cmd": "l')]).rpartition('"l')[0] + '"l'
    message = renderer.parse(renderer.encode(f"<think></think>{cut}"), TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("run", '{"cmd": "l')]


HARMONY = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look: <|end|>"
    '<|start|>assistant to=functions.run<|channel|>commentary json<|message|>{"cmd": "ls"}<|end|>'
    "<|start|>assistant<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"
)
HARMONY_PIECES = [
    *harmony.MARKERS,
    "analysis",
    "final",
    "text",
    " to=functions.run",
    "{",
    '{"cmd": "ls"}',
    "\n",
    HARMONY,
]


def harmony_steps(ids: list[int], cuts: Iterable[int], has_tools: bool = True) -> list[ReplyDelta]:
    """What the parser of gpt-oss gives; the library's renderer of it wants openai's own vocabulary."""
    tokenizer = shown_tokenizer().tokenizer
    ends = [tokenizer.token_id(text) for text in ("<|return|>", "<|call|>")]
    parser = SampledReplyParser(
        tokenizer.detokenizer(harmony.MARKERS),
        harmony.HarmonyReader(has_tools),
        [end for end in ends if end is not None],
    )
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [*(delta for start, end in pairwise(edges) for delta in parser.feed(ids[start:end])), *parser.finish()]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(HARMONY_PIECES), max_size=14), st.lists(st.integers(0, 900), max_size=30), st.booleans()
)
def test_a_stream_of_harmony_put_together_is_the_whole(pieces: list[str], cuts: list[int], has_tools: bool) -> None:
    ids = shown_tokenizer().encode("".join(pieces))
    assert join_deltas(harmony_steps(ids, cuts, has_tools)) == join_deltas(harmony_steps(ids, (), has_tools))


def test_harmony_comes_as_it_is_sampled_and_as_the_library_reads_it() -> None:
    from renderers.parsing import parse_gpt_oss

    shown = shown_tokenizer()
    ids = shown.encode(HARMONY + "<|call|>")
    deltas = harmony_steps(ids, range(len(ids)))
    assert [d.text for d in deltas if isinstance(d, CallArguments)] == list('{"cmd": "ls"}{}')
    assert [d.text for d in deltas if isinstance(d, ReasoningDelta)] == ["h", "m"]
    names = ("return", "call", "start", "end", "channel", "message", "constrain")
    own = {f"{name}_id": shown.convert_tokens_to_ids(f"<|{name}|>") for name in names}
    theirs = parse_gpt_oss(shown, shown.encode("<|start|>assistant") + ids, **own)
    whole = join_deltas(deltas)
    calls = [(call.name, json.loads(call.arguments)) for call in whole.tool_calls]
    assert calls == [(call.name, call.arguments) for call in theirs.tool_calls]
    assert (whole.content.strip(), whole.reasoning) == (theirs.content, theirs.reasoning_content)


def test_what_is_no_harmony_call_is_text() -> None:
    shown = shown_tokenizer()
    read = join_deltas(harmony_steps(shown.encode("<|channel|>commentary to=functions.run<|message|>ls<|call|>"), ()))
    assert (read.content, read.tool_calls) == ("ls", ())
    assert join_deltas(harmony_steps(shown.encode("plain"), ())).content == "plain"
    assert join_deltas(harmony_steps(shown.encode(HARMONY), (), False)).content == 'I look: {"cmd": "ls"}{}'


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("functions.run", "run"),
        ("functions.a.b", "a.b"),
        ("run", "run"),
        ("python_runner", "python_runner"),
        ("python", None),
        ("browser.search", None),
        ("assistant", None),
    ],
)
def test_a_harmony_call_is_addressed_with_its_namespace_or_without(address: str, name: str | None) -> None:
    shown = shown_tokenizer()
    read = join_deltas(harmony_steps(shown.encode(f"<|channel|>commentary to={address}<|message|>{{}}<|call|>"), ()))
    assert [call.name for call in read.tool_calls] == ([] if name is None else [name])


TEMPLATES = {
    "deepseekv3": DEEPSEEK,
    **dict.fromkeys(("qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_ultra"), XML),
    "glm4moe": ARGUMENT_TAGS,
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_template_tells_its_form_of_calls(name: str) -> None:
    path = Path(sys.prefix) / "chat-templates" / "trl" / "chat_templates" / f"{name}.jinja"
    form = form_of(path.read_text("utf-8"), "<|im_start|>assistant\n")
    assert form.calls is TEMPLATES[name]
    tokenizer = shown_tokenizer().tokenizer
    (family, *_) = [own for own in sorted(OWN_FORMS) if OWN_FORMS[own].calls is form.calls]
    text = marked(family, [("run", '{"cmd": "ls"}')]) if family in MARKED else written(family, [("run", {"cmd": "ls"})])
    ids = tokenizer.encode_template(text)
    read = whole_reply(reply_parser(tokenizer, ReplyForm("never", form.calls), TOOLS, ()), ids)
    assert [(call.name, call.arguments) for call in read.tool_calls] == [("run", '{"cmd": "ls"}')]
