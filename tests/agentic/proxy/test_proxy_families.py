"""Families whose calls are tags and no JSON: thinking, text and each argument stream, and the sum is the whole reading.

Faked is the vocabulary: one token a byte, and the special tokens that the families' renderers look up.
"""

import json
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_tokens import make_tokenizer
from tokenizers import AddedToken

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
    INVOKE,
    KIMI,
    XML,
    MarkedForm,
    ReplyForm,
    TaggedForm,
    form_of,
)
from agentic.proxy.renderers.library import OWN_FORMS, LibraryRenderer, LibraryTokenizer
from agentic.proxy.renderers.parsers import SampledReplyParser, reply_parser, whole_reply
from agentic.proxy.renderers.tokens import TextTokenizer, TokenizerFiles

DEEPSEEK_NAMES = [
    *["begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant"],
    *["tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end"],
]
SPECIAL = [
    *["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|begin_of_image|>", "/nothink"],
    *["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
    *harmony.MARKERS,
    "<|return|>",
    *["<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[EOS]", "[BOS]"],
    *["<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"],
    *KIMI.markers,
    *DEEPSEEK.markers,
    *(DEEPSEEK.name_open.replace("tool\u2581sep", name) for name in DEEPSEEK_NAMES),
    *["〈|EOS|〉", "<assistant>", "</assistant>"],
    *["]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"],
]
ADDED = [
    *["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    *["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
]
SCHEMAS: dict[str, Any] = {
    "cmd": {"type": "string"},
    "old": {"type": ["string"]},
    "count": {"type": "integer"},
    "paths": {"type": "array", "items": {"type": "string"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
TOOLS = [
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": SCHEMAS}}},
    {"type": "function", "function": {"name": "stop"}},
]
FAMILIES = sorted(name for name, form in OWN_FORMS.items() if isinstance(form.calls, TaggedForm))


def written(family: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Calls as the family's template writes them."""
    form = OWN_FORMS[family].calls
    if form is INVOKE:
        invokes = "\n".join(f'<invoke name="{name}">\n{_params(form, own)}</invoke>' for name, own in calls)
        return f"<minimax:tool_call>\n{invokes}\n</minimax:tool_call>"
    if form is XML:
        blocks = [f"<function={name}>\n{_params(form, own)}</function>\n" for name, own in calls]
        return "\n".join(f"<tool_call>\n{block}</tool_call>" for block in blocks)
    return "".join(f"<tool_call>{name}\n{_params(form, own)}</tool_call>" for name, own in calls)


def _params(form: object, arguments: dict[str, Any]) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
    match form:
        case _ if form is XML:
            return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
        case _ if form is INVOKE:
            return "".join(f'<parameter name="{key}">{text}</parameter>\n' for key, text in texts.items())
    return "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in texts.items())


@cache
def shown_tokenizer() -> LibraryTokenizer:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    files = TokenizerFiles("", {"eos_token": "<|im_end|>"})
    return LibraryTokenizer("some/model", TextTokenizer(tokenizer), files)


@cache
def library_of(family: str) -> Any:
    import renderers

    return renderers.create_renderer(shown_tokenizer(), renderers.config_from_name(family))


@cache
def renderer_of(family: str) -> LibraryRenderer:
    return LibraryRenderer(library_of(family), shown_tokenizer(), family)


def streamed(renderer: LibraryRenderer, ids: list[int], cuts: list[int], has_tools: bool = True) -> list[ReplyDelta]:
    parser = renderer.stream_parser(TOOLS if has_tools else None)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [*(delta for start, end in pairwise(edges) for delta in parser.feed(ids[start:end])), *parser.finish()]


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
    *(written(family, [("run", {"cmd": "ls\n", "count": 3})]) for family in ("qwen3.5", "glm-5", "minimax-m2")),
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
    ids = renderer.encode(f"<think>\nhm\n</think>\n\nlook{written(family, asked)}")
    message = join_deltas(streamed(renderer, ids, cuts))
    assert [(c.name, c.arguments) for c in message.tool_calls] == [
        (name, json.dumps(own, ensure_ascii=False)) for name, own in asked
    ]


@settings(deadline=None)
@given(st.sampled_from(FAMILIES), calls)
def test_the_library_reads_the_same_calls_but_for_white_space_around_values(
    family: str, asked: list[tuple[str, dict[str, Any]]]
) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode(f"<think>\nhm\n</think>\n\nlook{written(family, asked)}")
    opening = renderer.render([Message("user", ".")], None)
    theirs = library_of(family).parse_response(ids, tools=TOOLS, prompt_ids=opening)
    ours = renderer.parse(ids, TOOLS)
    assert [(c.name, _stripped(json.loads(c.arguments))) for c in ours.tool_calls] == [
        (c.name, _stripped(c.arguments)) for c in theirs.tool_calls
    ]


def _stripped(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value.strip() if isinstance(value, str) else value for key, value in arguments.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_thinking_text_and_arguments_come_as_they_are_sampled(family: str) -> None:
    renderer = renderer_of(family)
    opened = renderer.parse(renderer.encode("a</think>b"), None).reasoning == "a"
    call = written(family, [("run", {"cmd": "make test", "count": 3})])
    ids = renderer.encode(("" if opened else "<think>\n") + f"hm\n</think>\n\nlook: {call}")
    parser = renderer.stream_parser(TOOLS)
    steps = [parser.feed([token]) for token in ids]
    deltas = [delta for step in steps for delta in step]
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == "hm"
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "look: "
    assert [d.name for d in deltas if isinstance(d, CallStart)] == ["run"]
    pieces = [d.text for d in deltas if isinstance(d, CallArguments)]
    assert pieces == ['{"cmd": "', *"make test", '"', ', "count": ', "3", "}"]
    assert parser.finish() == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "broken", ["nonsense", "", "nonsense{closing}", "<function=>{closing}", "{long}<function=run>"]
)
def test_what_is_no_call_stays_text(family: str, broken: str) -> None:
    renderer = renderer_of(family)
    form = OWN_FORMS[family].calls
    broken = form.opening + broken.replace("{closing}", form.closing or "").replace("{long}", "<function=" + "x" * 300)
    ids = renderer.encode(f"<think>\nhm\n</think>\n\nlook {broken}")
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
    ],
)  # fmt: skip
def test_a_call_that_is_not_whole_is_as_open_as_it_was_written(family: str, text: str, arguments: str | None) -> None:
    renderer = renderer_of(family)
    message = renderer.parse(renderer.encode(f"<think>\n</think>\n\n{text}"), TOOLS)
    assert [call.arguments for call in message.tool_calls] == ([] if arguments is None else [arguments])


@pytest.mark.parametrize("family", ["qwen3", "qwen3-vl"])
def test_families_whose_calls_are_json_stream_them_as_they_are_written(family: str) -> None:
    renderer = renderer_of(family)
    ids = renderer.encode('look <tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>')
    parser = renderer.stream_parser(TOOLS)
    deltas = [delta for token in ids for delta in parser.feed([token])]
    assert [d.text for d in deltas if isinstance(d, CallArguments)] == list('{"cmd": "ls"}')
    assert [d.name for d in deltas if isinstance(d, CallStart)] == ["run"]


MARKED = sorted(name for name, form in OWN_FORMS.items() if isinstance(form.calls, MarkedForm))


def marked(family: str, calls: list[tuple[str, str]]) -> str:
    """Calls as the family's template writes them."""
    form = OWN_FORMS[family].calls
    if form is KIMI:
        parts = [f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{own}<|tool_call_end|>"
                 for n, (name, own) in enumerate(calls)]  # fmt: skip
        return f"<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>"
    parts = [
        f"{DEEPSEEK.call_open}function{DEEPSEEK.name_open}{name}\n```json\n{own}\n```{DEEPSEEK.call_end}"
        for name, own in calls
    ]
    return DEEPSEEK.opening + "\n".join(parts) + DEEPSEEK.closing


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
    assert accepts(grammar, text), text
    assert not accepts(grammar, "text"), "nothing else is let through"
    assert not accepts(grammar, text.replace("run", "stop")), "no other tool is"
    read = renderer.parse(renderer.encode(f"<think></think>{text}"), TOOLS)
    assert [(call.name, json.loads(call.arguments)) for call in read.tool_calls] == [("run", own)]


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
    """What the parser of gpt-oss gives; the library's renderer of it loads a vocabulary that no package has."""
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
