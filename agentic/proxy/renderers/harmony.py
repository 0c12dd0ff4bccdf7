"""Reads Harmony, the form of gpt-oss, while it is sampled: messages with a header each, in channels.

`<|channel|>analysis<|message|>` opens thinking, `final` and `commentary` open text, and a header with
`to=functions.NAME`, or `to=NAME`, opens a call, whose arguments are given out as they are written once they have begun
with a brace; what was no call by then is text. The prompt has opened the first header. Work for each piece is linear in
the piece.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from ..conversation import CallArguments, CallStart, ReasoningDelta, ReplyDelta, TextDelta
from .markers import split_at
from .message_steps import MessageReader
from .reply import merged

START, MESSAGE, CHANNEL = "<|start|>", "<|message|>", "<|channel|>"
ENDS = ("<|end|>", "<|call|>")
MARKERS = (START, MESSAGE, CHANNEL, "<|constrain|>", *ENDS)
_RECIPIENT = re.compile(r"to=(?:functions\.([^\s<]+)|(?!(?:assistant|python|browser|container)\b)([\w-]+)(?![\w.-]))")
"""A tool's name; without its namespace too, unless it is that of a tool which the model has been taught."""


class Part(Enum):
    """Where in the reply the next character belongs."""

    HEADER = auto()
    THINKING = auto()
    TEXT = auto()
    BEFORE_ARGUMENTS = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()


class HarmonyReader(MessageReader):
    """Reads one reply piece by piece."""

    def __init__(self, has_tools: bool) -> None:
        super().__init__()
        self._has_tools = has_tools
        self._read: list[str] = []
        """Of a header, or before arguments: what was looked at, and is not looked at again with each piece."""
        self._name = ""
        self._has_messages = False
        self._part = Part.HEADER

    def finish(self) -> list[ReplyDelta]:
        """The rest; a reply without any message is text."""
        out = self._run("", is_end=True)
        if not self._has_messages and (self._read or self._rest):
            out.append(TextDelta(self._taken() + self._rest))
        return merged(out)

    def _step(self, is_end: bool) -> bool:
        return STEPS[self._part](self, is_end)

    def _read_header(self, _is_end: bool) -> bool:
        before, found, self._rest = split_at(self._rest, (MESSAGE,), is_end=False)
        self._set_apart(before)
        if found is None:
            return False
        header, self._has_messages = self._taken(), True
        called = _RECIPIENT.search(header)
        if called is not None and self._has_tools:
            self._name = called[1] or called[2]
            return self._go(Part.BEFORE_ARGUMENTS)
        channel = header.rpartition(CHANNEL)[2].split()
        return self._go(Part.THINKING if channel[:1] == ["analysis"] else Part.TEXT)

    def _begin_arguments(self, is_end: bool) -> bool:
        begun = self._rest.lstrip()
        self._set_apart(self._rest[: len(self._rest) - len(begun)])
        self._rest = begun
        if not begun and not is_end:
            return False
        space = self._taken()
        if not begun.startswith("{"):
            self._rest = space + begun
            return self._go(Part.TEXT)
        self._out.append(CallStart(self._count, self._name))
        self._count += 1
        return self._go(Part.ARGUMENTS)

    def _read_body(self, is_end: bool) -> bool:
        text, found, self._rest = split_at(self._rest, (START, *ENDS), is_end)
        if text:
            self._out.append(self._delta(text))
        return found is not None and self._go(Part.HEADER if found == START else Part.BETWEEN)

    def _delta(self, text: str) -> ReplyDelta:
        match self._part:
            case Part.THINKING:
                return ReasoningDelta(text)
            case Part.ARGUMENTS:
                return CallArguments(self._count - 1, text)
        return TextDelta(text)

    def _seek_header(self, _is_end: bool) -> bool:
        _, found, self._rest = split_at(self._rest, (START,), is_end=False)
        return found is not None and self._go(Part.HEADER)

    def _set_apart(self, text: str) -> None:
        if text:
            self._read.append(text)

    def _taken(self) -> str:
        text = "".join(self._read)
        self._read.clear()
        return text

    def _go(self, part: Part) -> bool:
        self._part = part
        return True


STEPS: Mapping[Part, Callable[[HarmonyReader, bool], bool]] = {
    Part.HEADER: HarmonyReader._read_header,
    Part.THINKING: HarmonyReader._read_body,
    Part.TEXT: HarmonyReader._read_body,
    Part.BEFORE_ARGUMENTS: HarmonyReader._begin_arguments,
    Part.ARGUMENTS: HarmonyReader._read_body,
    Part.BETWEEN: HarmonyReader._seek_header,
}
"""What reads each place. Of the class: a reader that held its own methods would be garbage for the collector."""
