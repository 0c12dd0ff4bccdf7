"""How a model writes thinking and tool calls, told by its chat template."""

from dataclasses import dataclass
from typing import Literal

from ..conversation import THINK_END

THINK_START = "<think>"


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written."""

    opening: str
    """What comes before a call's JSON object."""
    closing: str | None
    """What comes after it; None: the reply is calls from its beginning on, or none, and a semicolon parts them."""
    argument_keys: tuple[str, ...]

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read."""
        return tuple(text for text in (self.opening, self.closing) if text)


@dataclass(frozen=True, slots=True)
class TaggedForm:
    """How calls are written whose arguments are tags and no JSON."""

    opening: str
    """What begins a block of calls."""
    closing: str
    name_open: str | None
    """What comes before a call's name; None: a block is one call, and begins with its name."""
    name_end: str
    call_end: str | None
    """What closes a call; None: the block's end does."""
    key_open: str
    key_end: str
    value_open: str | None
    """What comes before a value; None: the end of its name does."""
    value_end: str
    has_line_breaks: bool
    """Whether one line break at each end of a value belongs to the form."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read."""
        texts = (self.opening, self.closing, self.name_open, self.call_end, self.key_open, self.key_end)
        return tuple(text for text in (*texts, self.value_open, self.value_end) if text and text != ">")


XML = TaggedForm(
    *("<tool_call>", "</tool_call>", "<function=", ">", "</function>"),
    *("<parameter=", ">", None, "</parameter>"),
    has_line_breaks=True,
)
"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3."""
ARGUMENT_TAGS = TaggedForm(
    *("<tool_call>", "</tool_call>", None, "", None),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    has_line_breaks=False,
)
"""GLM 4.5 and later."""
INVOKE = TaggedForm(
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '">', "</invoke>"),
    *('<parameter name="', '">', None, "</parameter>"),
    has_line_breaks=False,
)
"""MiniMax M2."""


@dataclass(frozen=True, slots=True)
class MarkedForm:
    """How calls are written whose names and JSON arguments stand between markers of their own."""

    opening: str
    """What begins a block of calls."""
    closing: str
    call_open: str
    name_open: str
    name_end: str
    arguments_end: str
    call_end: str
    has_ids: bool
    """Whether what stands for the name is `functions.NAME:NUMBER`."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read."""
        block = (self.opening, self.closing, self.call_open, self.call_end)
        call = (self.name_open, self.name_end, self.arguments_end)
        return tuple(text for text in (*block, *call) if text.startswith("<"))

    def name_of(self, written: str) -> str:
        """The name that is written; empty if there is none."""
        name = written.strip()
        return name.partition(":")[0].rpartition("functions.")[2] if self.has_ids else name


KIMI = MarkedForm(
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call_end|>"),
    has_ids=True,
)
"""Kimi K2."""
_BAR, _SPACE = "\uff5c", "\u2581"
"""In DeepSeek's special tokens."""


def _deepseek(words: str) -> str:
    return f"<{_BAR}{words.replace(' ', _SPACE)}{_BAR}>"


DEEPSEEK = MarkedForm(
    *(_deepseek("tool calls begin"), _deepseek("tool calls end"), _deepseek("tool call begin")),
    *(_deepseek("tool sep"), "\n```json\n", "\n```", _deepseek("tool call end")),
    has_ids=False,
)
"""DeepSeek V3 and R1; what a call begins with, `function`, says nothing."""

SIGNS: dict[tuple[str, ...], "AnyCallForm"] = {
    ("<function=",): XML,
    ("<arg_key>",): ARGUMENT_TAGS,
    ("<minimax:tool_call>",): INVOKE,
    (KIMI.opening, KIMI.name_end): KIMI,
    (DEEPSEEK.name_open, "```json"): DEEPSEEK,
}
"""What in a chat template tells a form."""

HERMES = CallForm("<tool_call>", "</tool_call>", ("arguments",))
LLAMA = CallForm("<|python_tag|>", None, ("parameters", "arguments"))


type AnyCallForm = CallForm | TaggedForm | MarkedForm


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """How a whole reply is written."""

    thinking: Literal["never", "may", "opened"]
    """"may": a reply that begins with `<think>`; "opened": the prompt has written `<think>` already."""
    calls: AnyCallForm = HERMES

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read, so shown even where the tokenizer counts them as special."""
        return (THINK_START, THINK_END, *self.calls.markers)


def form_of(template: str, generation_prompt: str) -> ReplyForm:
    """What a template and the text with which it opens an assistant turn tell."""
    calls = _call_form_of(template)
    if THINK_END not in template:
        return ReplyForm("never", calls)
    return ReplyForm("opened" if opens_thinking(generation_prompt) else "may", calls)


def _call_form_of(template: str) -> AnyCallForm:
    told = next((form for signs, form in SIGNS.items() if all(sign in template for sign in signs)), None)
    if told is not None:
        return told
    is_llama = "<tool_call>" not in template and '"parameters": ' in template
    return LLAMA if is_llama else HERMES


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt ends within thinking, so that the reply begins there."""
    return prompt.rfind(THINK_START) > prompt.rfind(THINK_END)
