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
    kind_open: str | None = None
    """What parts a parameter's name from `true` or `false`, which says whether its value is a string; None: its schema
    does."""
    token: str | None = None
    """The special token that markers are written with, where they are none themselves."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read."""
        texts = (self.opening, self.closing, self.name_open, self.name_end, self.call_end, self.key_open, self.key_end)
        shown = (*texts, self.value_open, self.value_end, self.token)
        return tuple(text for text in shown if text and text not in (">", '">'))


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


HUNYUAN = TaggedForm(
    *("<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_call:opensource>", "<tool_sep:opensource>"),
    *("</tool_call:opensource>", "<arg_key:opensource>", "</arg_key:opensource>"),
    *("<arg_value:opensource>", "</arg_value:opensource>"),
    has_line_breaks=False,
)
"""Hy3."""
_DSML = "\uff5cDSML\uff5c"
DSML = TaggedForm(
    *(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", f'<{_DSML}invoke name="', '">', f"</{_DSML}invoke>"),
    *(f'<{_DSML}parameter name="', '">', None, f"</{_DSML}parameter>"),
    has_line_breaks=False,
    kind_open='" string="',
    token=_DSML,
)
"""DeepSeek V4."""


@dataclass(frozen=True, slots=True)
class QuotedForm:
    """How calls are written as a name and an object that is no JSON: bare keys, strings between quotation tokens."""

    opening: str
    closing: str
    name_open: str
    quote: str

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read."""
        return (self.opening, self.closing, self.quote)


GEMMA = QuotedForm("<|tool_call>", "<tool_call|>", "call:", '<|"|>')
"""Gemma 4."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How replies are written as messages, each of which begins with a marker that says what it is."""

    start: str
    end: str
    thinking: str
    text: str
    calls: tuple[str, ...]
    """What comes between a tool's name and the JSON object of its call."""
    argument_key: str

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read."""
        return (self.start, self.end, self.thinking, self.text, *self.calls)


INKLING = MessageForm(
    *("<|message_model|>", "<|end_message|>", "<|content_thinking|>", "<|content_text|>"),
    ("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
    "args",
)


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


type AnyCallForm = CallForm | TaggedForm | MarkedForm | QuotedForm


def openings_of(calls: AnyCallForm) -> tuple[str, ...]:
    """What may begin a block of calls, or a call without one where calls have a marker of their own."""
    if isinstance(calls, TaggedForm) and calls.name_open is not None:
        return (calls.opening, calls.name_open)
    return (calls.opening,)


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """What thinking stands between."""

    opening: str = THINK_START
    closing: str = THINK_END
    label: str = ""
    """What may follow the opening and belongs to it."""


THINK = ThinkingMarks()


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """How a whole reply is written."""

    thinking: Literal["never", "may", "opened"]
    """"may": a reply that begins with `<think>`; "opened": the prompt has written `<think>` already."""
    calls: AnyCallForm = HERMES
    marks: ThinkingMarks = THINK

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are read, so shown even where the tokenizer counts them as special."""
        return (self.marks.opening, self.marks.closing, *self.calls.markers)


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


def opens_thinking(prompt: str, marks: ThinkingMarks = THINK) -> bool:
    """Whether a prompt ends within thinking, so that the reply begins there."""
    return prompt.rfind(marks.opening) > prompt.rfind(marks.closing)
