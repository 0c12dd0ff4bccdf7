"""Our reading of replies beside that of vLLM and of the library `renderers`, on the same generated replies.

Each reply that is read differently is listed in a `parser_differences_*.json` under the rule that says why; the rules
and what was decided are in docs/proxy-parsers.md. A difference that is not listed fails, and so does a listed one that
is none. `make golden` writes the lists anew, and refuses what no rule explains.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from family_rig import library_of, renderer_of, written
from malformed_rules import RULES as MALFORMED_RULES
from malformed_rules import Reply, Rule, comparable
from proxy_tokens import make_tokenizer
from reply_corpus import (
    TAGGED_TOOLS,
    hermes_replies,
    llama_replies,
    malformed_replies,
    spoilt_replies,
    tagged_replies,
)
from thinking_corpus import THINKERS, harmony_replies, thinking_replies
from thinking_rules import HARMONY_RULES
from thinking_rules import RULES as THINKING_RULES

from agentic.proxy.conversation import Message, join_deltas
from agentic.proxy.renderers.forms import (
    ARGUMENT_TAGS,
    DEEPSEEK,
    DSML,
    GEMMA,
    HUNYUAN,
    INKLING,
    INVOKE,
    KIMI,
    LLAMA,
    XML,
    ReplyForm,
)
from agentic.proxy.renderers.harmony import HarmonyReader
from agentic.proxy.renderers.library import OWN_FORMS
from agentic.proxy.renderers.reply import ReplyReader

HERE = Path(__file__).parent
LISTS = {
    peer: HERE / f"parser_differences_{peer}.json"
    for peer in ("vllm", "library", "malformed", "malformed_library", "thinking", "harmony")
}
DOCUMENT = HERE.parents[2] / "docs" / "proxy-parsers.md"
HERMES_REPLIES, LLAMA_REPLIES, TAGGED_REPLIES = hermes_replies(300), llama_replies(120), tagged_replies(60)
MALFORMED = "malformed "
"""Before a peer's name: its reading of malformed replies."""
MALFORMED_REPLIES = malformed_replies(60)
THINKING = "thinking "
"""Before the names of a peer's parsers: its reading of replies with thinking."""
THINKING_REPLIES, HARMONY_REPLIES = thinking_replies(100), harmony_replies(160)
LIBRARY_PEERS = {"deepseek-v4": "deepseek_v4", "hy3": "hy_v3", "gemma4": "gemma4"}
"""Families that the library reads too, with the name under which their malformed replies are made."""
TAGGED_FORMS = {
    "qwen3_coder": ReplyForm("never", XML),
    "glm47": ReplyForm("never", ARGUMENT_TAGS),
    "minimax_m2": ReplyForm("never", INVOKE),
    "kimi_k2": ReplyForm("never", KIMI),
    "deepseek_v3": ReplyForm("never", DEEPSEEK),
    "deepseek_v4": ReplyForm("never", DSML),
    "hy_v3": ReplyForm("never", HUNYUAN),
    "gemma4": ReplyForm("never", GEMMA),
}
THINKING_FAMILIES = {
    "qwen3 and qwen3_coder": "qwen3.5",
    "nemotron_v3 and qwen3_coder": "nemotron-3",
    "glm45 and glm47": "glm-5",
    "poolside_v1": "laguna-s-2.1",
    "minimax_m2": "minimax-m2",
    "kimi_k2": "kimi-k2",
    "deepseek_r1 and deepseek_v3": "deepseek-r1",
    "deepseek_v4": "deepseek-v4",
    "hy_v3": "hy3",
    "gemma4": "gemma4",
}
"""A family for the names of vLLM's parsers."""
FORMS = {
    "hermes": ReplyForm("never"),
    "deepseek_r1 and hermes": ReplyForm("opened"),
    "qwen3 and hermes": ReplyForm("opened"),
    "llama3_json": ReplyForm("never", LLAMA),
    "renderers qwen3": ReplyForm("may"),
}
STRIPPING = ("renderers qwen3",)
"""Who takes away the white space around the text of every reply."""


def read_ours(text: str, form: ReplyForm) -> Reply:
    reader = ReplyReader(form, TAGGED_TOOLS)
    message = join_deltas([*reader.feed(text), *reader.finish()])
    calls = [(call.name, value_of(call.arguments)) for call in message.tool_calls]
    return message.content, message.reasoning or "", calls


def value_of(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return f"no JSON: {arguments}"


def blocks_of(text: str) -> list[str]:
    return re.findall(r"<tool_call>(.*?)(?:</tool_call>|$)", text, re.DOTALL)


def is_good(block: str, keys: tuple[str, ...] = ("arguments",)) -> bool:
    value = value_of(block)
    return isinstance(value, dict) and isinstance(value.get("name"), str) and any(key in value for key in keys)


def without_space(reply: Reply) -> Reply:
    return reply[0].strip(), reply[1].strip(), reply[2]


def one_bad_call(text: str, _ours: Reply, theirs: Reply) -> bool:
    return not theirs[2] and any(not is_good(block) for block in blocks_of(text))


def bad_call_left_out(text: str, _ours: Reply, theirs: Reply) -> bool:
    return bool(theirs[2]) and any(not is_good(block) for block in blocks_of(text))


def no_object(_text: str, _ours: Reply, theirs: Reply) -> bool:
    return any(not isinstance(value, dict) for _, value in theirs[2])


def name_twice(_text: str, ours: Reply, theirs: Reply) -> bool:
    return [value for _, value in ours[2]] == [value for _, value in theirs[2]] and ours[2] != theirs[2]


def unended_thinking(text: str, ours: Reply, theirs: Reply) -> bool:
    return "</think>" not in text and "<tool_call>" in text and not theirs[0] and "<tool_call>" in theirs[1]


def draft(text: str, ours: Reply, theirs: Reply) -> bool:
    before_end = 0 <= text.find("<tool_call>") < text.find("</think>")
    return before_end and "<tool_call>" in ours[1] and "<tool_call>" not in theirs[1]


def text_before(text: str, ours: Reply, theirs: Reply) -> bool:
    before = text.partition("<think>")[0]
    return bool(before.strip()) and without_space((ours[0], ours[1].replace(before.strip(), "", 1), ours[2])) == (
        without_space(theirs)
    )


def call_after_text(text: str, ours: Reply, theirs: Reply) -> bool:
    begins = text.lstrip().startswith(("{", "<|python_tag|>"))
    return "<tool_call>" not in text and not ours[2] and bool(theirs[2]) and not begins


def one_bad_object(text: str, ours: Reply, theirs: Reply) -> bool:
    return bool(ours[2]) and not theirs[2] and theirs[0].strip() == text.strip()


RULES: dict[str, Rule] = {
    "no object": no_object,
    "name twice": name_twice,
    "draft": draft,
    "unended thinking": unended_thinking,
    "one bad call": one_bad_call,
    "bad call left out": bad_call_left_out,
    "text before thinking": text_before,
    "call after text": call_after_text,
    "one bad object": one_bad_object,
}


@pytest.fixture(scope="module")
def vllm_replies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Reply]]:
    """What vLLM's parsers make of the replies; importing vLLM takes 20 s, so it happens once, elsewhere."""
    folder = tmp_path_factory.mktemp("parsers")
    asked: dict[str, Any] = {"hermes": HERMES_REPLIES, "llama": LLAMA_REPLIES, "tools": TAGGED_TOOLS}
    asked |= {"tagged": TAGGED_REPLIES, "malformed": MALFORMED_REPLIES}
    asked |= {"thinking": THINKING_REPLIES, "harmony": HARMONY_REPLIES}
    (folder / "replies.json").write_text(json.dumps(asked), "utf-8")
    script = HERE.parents[1] / "doubles" / "vllm_parsers.py"
    command = [sys.executable, str(script), str(folder / "replies.json"), str(folder / "results.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    results = json.loads((folder / "results.json").read_text("utf-8"))
    return {peer: {text: as_reply(reply) for text, reply in replies.items()} for peer, replies in results.items()}


def as_reply(raw: list[Any]) -> Reply:
    content, reasoning, calls = raw
    return content, reasoning or "", [(name, value_of(arguments)) for name, arguments in calls]


def differences(peer: str, theirs: dict[str, Reply]) -> dict[str, list[str]]:
    """Replies that are read differently, by the rule that says why; white space around thinking apart."""
    found: dict[str, list[str]] = {}
    for text, their in theirs.items():
        our = read_ours(text, FORMS[peer])
        may_differ_in_space = "think>" in text or our[1] or their[1] or peer in STRIPPING
        if our == their or (may_differ_in_space and without_space(our) == without_space(their)):
            continue
        rule = next((name for name, explains in RULES.items() if explains(text, our, their)), "unexplained")
        found.setdefault(rule, []).append(text)
    return found


def listing(peers: dict[str, dict[str, Reply]]) -> str:
    found = {peer: differences(peer, theirs) for peer, theirs in peers.items()}
    unexplained = [(peer, text) for peer, rules in found.items() for text in rules.get("unexplained", [])]
    assert not unexplained, "no rule explains these: decide, and say so in docs/proxy-parsers.md"
    return as_list(found)


@pytest.mark.timeout(600)
def test_every_difference_to_vllm_s_parsers_is_listed_and_decided(
    vllm_replies: dict[str, dict[str, Reply]], golden: Callable[..., None]
) -> None:
    untagged = {peer: vllm_replies[peer] for peer in FORMS if peer in vllm_replies}
    golden(LISTS["vllm"], listing(untagged), parse=json.loads)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("peer", sorted(TAGGED_FORMS))
def test_calls_in_tags_are_read_as_by_vllm_but_for_white_space(
    vllm_replies: dict[str, dict[str, Reply]], peer: str
) -> None:
    assert len(vllm_replies[peer]) > 20
    for text, theirs in vllm_replies[peer].items():
        ours = read_ours(text, TAGGED_FORMS[peer])
        assert ours[2], text
        assert in_values_stripped(ours) == in_values_stripped(theirs), text


@pytest.mark.timeout(600)
def test_every_difference_on_malformed_calls_is_listed_and_decided(
    vllm_replies: dict[str, dict[str, Reply]], golden: Callable[..., None]
) -> None:
    found = {
        peer: by_rule(
            {text: (read_ours(text, form), theirs) for text, theirs in vllm_replies[MALFORMED + peer].items()}
        )
        for peer, form in TAGGED_FORMS.items()
    }
    golden(LISTS["malformed"], as_list(found), parse=json.loads)


@pytest.mark.timeout(600)
def test_every_difference_to_vllm_on_thinking_is_listed_and_decided(
    vllm_replies: dict[str, dict[str, Reply]], golden: Callable[..., None]
) -> None:
    found = {}
    for peer, thinker in THINKERS.items():
        form = replace(OWN_FORMS[THINKING_FAMILIES[peer]], thinking="opened" if thinker.is_opened else "may")
        theirs = vllm_replies[THINKING + peer]
        found[peer] = by_rule({text: (read_ours(text, form), theirs[text]) for text in theirs}, THINKING_RULES)
        assert sum(map(len, found[peer].values())) < len(theirs) / 2, "most are read alike"
    golden(LISTS["thinking"], as_list(found), parse=json.loads)


@pytest.mark.timeout(600)
def test_every_difference_to_vllm_on_harmony_is_listed_and_decided(
    vllm_replies: dict[str, dict[str, Reply]], golden: Callable[..., None]
) -> None:
    theirs = vllm_replies["harmony"]
    found = by_rule({text: (read_harmony(text), theirs[text]) for text in theirs}, HARMONY_RULES)
    golden(LISTS["harmony"], as_list({"openai_gptoss and openai": found}), parse=json.loads)


def read_harmony(text: str) -> Reply:
    """Up to where the engine stops, as the ids are cut."""
    reader = HarmonyReader(has_tools=True)
    message = join_deltas([*reader.feed(text.removesuffix("<|return|>").removesuffix("<|call|>")), *reader.finish()])
    return message.content, message.reasoning or "", [(c.name, value_of(c.arguments)) for c in message.tool_calls]


def test_every_difference_to_the_library_on_calls_that_it_finds_good_is_listed_and_decided(
    golden: Callable[..., None],
) -> None:
    inkling = [f"{INKLING.text}look{written('inkling', [('run', {'cmd': 'ls', 'count': 3}), ('stop', {})])}"]
    replies = {family: MALFORMED_REPLIES[peer] for family, peer in LIBRARY_PEERS.items()}
    replies["inkling"] = spoilt_replies(inkling, 60, Random("inkling"))
    found = {family: by_rule(both_readings(family, texts)) for family, texts in replies.items()}
    golden(LISTS["malformed_library"], as_list(found), parse=json.loads)


def both_readings(family: str, texts: list[str]) -> dict[str, tuple[Reply, Reply]]:
    """Ours and the library's, where all calls that it finds are good ones."""
    renderer, library = renderer_of(family), library_of(family)
    opening = renderer.render([Message("user", ".")], None)
    read: dict[str, tuple[Reply, Reply]] = {}
    for text in texts:
        ids = renderer.encode(text)
        theirs = library.parse_response(ids, tools=TAGGED_TOOLS, prompt_ids=opening)
        if all(call.status == "ok" for call in theirs.tool_calls):
            ours = renderer.parse(ids, TAGGED_TOOLS)
            our_calls = [(call.name, value_of(call.arguments)) for call in ours.tool_calls]
            calls = [(call.name, call.arguments) for call in theirs.tool_calls]
            read[text] = (ours.content, "", our_calls), (theirs.content, "", calls)
    assert len(read) > 10
    return read


def by_rule(
    readings: dict[str, tuple[Reply, Reply]], explained_by: dict[str, Rule] = MALFORMED_RULES
) -> dict[str, list[str]]:
    """Replies that are read differently, by the rule that says why; white space around texts and values apart."""
    rules: dict[str, list[str]] = {}
    for text, (our, their) in readings.items():
        both = comparable(our), comparable(their)
        if both[0] != both[1]:
            rule = next((name for name, explains in explained_by.items() if explains(text, *both)), None)
            assert rule, f"no rule explains {both} of {text!r}: decide, and say so in docs/proxy-parsers.md"
            rules.setdefault(rule, []).append(text)
    return rules


def as_list(found: dict[str, dict[str, list[str]]]) -> str:
    return json.dumps(found, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def in_values_stripped(reply: Reply) -> Reply:
    content, reasoning, calls = without_space(reply)
    stripped = [(name, {key: v.strip() if isinstance(v, str) else v for key, v in own.items()}) for name, own in calls]
    return content, reasoning, stripped


def test_every_difference_to_the_library_s_parser_is_listed_and_decided(golden: Callable[..., None]) -> None:
    theirs = {text: read_library(text) for text in HERMES_REPLIES}
    golden(LISTS["library"], listing({"renderers qwen3": theirs}), parse=json.loads)


def test_well_formed_replies_are_read_alike_by_all() -> None:
    plain = {
        text
        for text in HERMES_REPLIES
        if not re.search(r'think|"other"', text)
        and all(is_good(block) and isinstance(value_of(block)["arguments"], dict) for block in blocks_of(text))
    }
    assert len(plain) > 60
    for file in LISTS.values():
        for rules in json.loads(file.read_text("utf-8")).values():
            assert not plain & {text for texts in rules.values() for text in texts} - set(
                rules.get("unended thinking", [])
            )


def test_each_rule_is_explained_in_the_document_and_each_one_there_is_a_rule() -> None:
    lists = [json.loads(file.read_text("utf-8")) for file in LISTS.values()]
    used = {rule for peers in lists for rules in peers.values() for rule in rules}
    told = set(re.findall(r"^\| \*\*(.+?)\*\*", DOCUMENT.read_text("utf-8"), re.MULTILINE))
    assert told == used | {"white space"}


def read_library(text: str) -> Reply:
    """The library's own function for Qwen3, on ids; its malformed attempts are left out, as its users are told to."""
    from renderers.parsing import parse_qwen3

    tokenizer = LibraryTokens()
    ids = {marker: tokenizer.convert_tokens_to_ids(marker) for marker in ("<tool_call>", "</tool_call>", "</think>")}
    parsed = parse_qwen3(
        tokenizer,
        tokenizer.encode(text),
        stop_ids={tokenizer.convert_tokens_to_ids("<|im_end|>")},
        tool_call_id=ids["<tool_call>"],
        tool_call_end_id=ids["</tool_call>"],
        reasoning_end_id=ids["</think>"],
    )
    calls = [(call.name, call.arguments) for call in parsed.tool_calls if call.status == "ok"]
    return parsed.content, parsed.reasoning_content or "", calls


class LibraryTokens:
    """The byte tokenizer with Qwen3's markers, as the library asks for it."""

    unk_token_id = None

    def __init__(self) -> None:
        self._tokenizer = make_tokenizer()
        self._tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)
