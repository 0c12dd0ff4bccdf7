"""Reading a piece of a reply looks at that piece and a bounded rest: a long reply in many pieces is not quadratic."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentic.proxy.conversation import join_deltas
from agentic.proxy.renderers.calls import LONGEST_NAME
from agentic.proxy.renderers.forms import (
    ARGUMENT_TAGS,
    DEEPSEEK,
    DSML,
    GEMMA,
    HERMES,
    HUNYUAN,
    INKLING,
    INVOKE,
    KIMI,
    LLAMA,
    THINK,
    XML,
    AnyCallForm,
    ReplyForm,
)
from agentic.proxy.renderers.harmony import MARKERS, HarmonyReader
from agentic.proxy.renderers.library import OWN_FORMS
from agentic.proxy.renderers.messages import MarkedMessagesReader
from agentic.proxy.renderers.reply import ReplyReader

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"properties": {"b": {"type": "integer"}}}}}]
KEPT = 2 * LONGEST_NAME + 100
"""Characters that may be looked at once more: a name that is not whole, and the beginning of a marker."""
FORMS: dict[str, AnyCallForm] = {
    "hermes": HERMES,
    "llama": LLAMA,
    "xml": XML,
    "glm": ARGUMENT_TAGS,
    "minimax": INVOKE,
    "kimi": KIMI,
    "deepseek": DEEPSEEK,
    "dsml": DSML,
    "hunyuan": HUNYUAN,
    "gemma": GEMMA,
}
MARKS = {form.calls: form.marks for form in OWN_FORMS.values()}
BEGINNINGS = {
    "hermes": ["<tool_call>", '{"name": "run", "arguments": {}}', '{"name": "run", "arguments": {', '{"x": ', "{]"],
    "llama": ['{"name": "run", "parameters": {}}', '{"name": "run", ', "<|python_tag|>"],
    "xml": ["<tool_call>\n<function=run>", "<parameter=b>", "<tool_call>" + "<function=" + "n" * 300, "</parameter>"],
    "glm": ["<tool_call>run", "<tool_call>" + "n" * 300, "<arg_key>b</arg_key>", "<arg_value>", "</arg_value>"],
    "minimax": ["<minimax:tool_call>", '<invoke name="run">', '<parameter name="b">', "</parameter>", "</invoke>"],
    "kimi": [KIMI.opening + KIMI.name_open, "functions.run:0" + KIMI.name_end, "{", KIMI.arguments_end],
    "deepseek": [DEEPSEEK.opening + DEEPSEEK.name_open, "function" + DEEPSEEK.name_end, "run\n```json\n{", "n" * 300],
    "dsml": [DSML.opening, f'{DSML.name_open}run">', f'{DSML.key_open}b" string="false">', DSML.value_end, "</"],
    "hunyuan": [HUNYUAN.opening, f"{HUNYUAN.name_open}run", HUNYUAN.name_end, HUNYUAN.key_open + "b", HUNYUAN.key_end],
    "gemma": ["<|channel>thought", "<channel|>", "<|tool_call>call:", "run{", 'a:[<|"|>', '<|"|>,', "{b:", "x", "]"],
    "inkling": [INKLING.thinking, INKLING.end + INKLING.start, "run", INKLING.calls[0], '{"name":"run",', '"args":{'],
    "harmony": ["<|channel|>commentary to=functions.run", "<|message|>", "{", "<|end|>", "<|start|>", "analysis"],
}
PIECES = [" ", "\n", "x", "<", '"', "\\", "{", "}", "[1", "1"]


def held_again(reader: Any) -> int:
    """Characters that a reader, with those inside it, adds the next piece to."""
    total = 0
    for value in vars(reader).values():
        if isinstance(value, str):
            total += len(value)
        elif type(value).__module__.startswith("agentic.proxy.renderers.") and hasattr(value, "__dict__"):
            total += held_again(value)
    return total


def readers(family: str) -> Iterator[Any]:
    """Readers of a family, in each way that a reply may begin."""
    if family == "harmony":
        yield HarmonyReader(has_tools=True)
        return
    if family == "inkling":
        yield MarkedMessagesReader(INKLING, has_tools=True)
        return
    marks = MARKS.get(FORMS[family], THINK)
    for thinking in ("never", "may", "opened"):
        yield ReplyReader(ReplyForm(thinking, FORMS[family], marks), TOOLS)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("family", BEGINNINGS)
def test_what_is_looked_at_again_is_bounded_wherever_a_reply_stands(family: str, piece: str) -> None:
    beginnings = BEGINNINGS[family]
    begun = [beginnings[:end] for end in range(len(beginnings) + 1)]
    begun += [beginnings[start:] for start in range(1, len(beginnings))]
    for beginning in begun:
        for reader in readers(family):
            reader.feed("".join(beginning))
            for _ in range(KEPT + 50):
                reader.feed(piece)
            assert held_again(reader) <= KEPT, (beginning, vars(reader))


@pytest.mark.parametrize("marker", MARKERS)
def test_a_header_without_an_end_is_text_whatever_its_pieces(marker: str) -> None:
    if marker == "<|message|>":
        marker += "x"
    text = " the beginning of " + marker + " what" * 10
    expected = HarmonyReader(True)
    whole = join_deltas([*expected.feed(text), *expected.finish()])
    reader = HarmonyReader(True)
    deltas = [delta for character in text for delta in reader.feed(character)]
    assert join_deltas([*deltas, *reader.finish()]) == whole
    assert "<|message|>" in text or whole.content == text
