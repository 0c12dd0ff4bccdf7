"""Reads replies that are messages, each begun by a marker that says what it is, while they are sampled (Inkling).

A message of thinking or text is given out as it comes. A call is its tool's name, a marker, and a JSON object with name
and arguments, read as in `calls`; what is no such object is text. So text without a marker before it is kept only as
long as it may be a name: one word. A marker within a message begins the next one. Work for each piece is linear in the
piece.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto

from ..conversation import CallArguments, CallStart, ReasoningDelta, TextDelta
from .calls import LONGEST_NAME, Called, CallPiece, CallReader
from .forms import MessageForm
from .markers import split_at
from .message_steps import MessageReader

_NAME = re.compile(r"\s*\S*\s*")


class Part(Enum):
    """Where in the reply the next character belongs."""

    HEADER = auto()
    THINKING = auto()
    TEXT = auto()
    CALL = auto()


class MarkedMessagesReader(MessageReader):
    """Reads one reply; calls are looked for only when there are tools."""

    def __init__(self, form: MessageForm, has_tools: bool) -> None:
        super().__init__()
        self._form = form
        self._has_tools = has_tools
        self._part = Part.HEADER
        self._name = ""
        """What may be the name of a tool, or is."""
        self._reader = CallReader((form.argument_key,))
        self._held: list[str] = []
        """Of a call that may be none."""
        self._is_started = False

    def _step(self, is_end: bool) -> bool:
        return STEPS[self._part](self, is_end)

    def _read_header(self, is_end: bool) -> bool:
        before, marker, self._rest = split_at(self._rest, self._form.markers, is_end)
        self._name += before
        if marker is not None:
            return self._open(marker)
        may_be_name = self._has_tools and len(self._name) <= LONGEST_NAME and _NAME.fullmatch(self._name)
        if may_be_name and not is_end:
            return False
        self._end_name()
        return self._go(Part.TEXT)

    def _read_body(self, is_end: bool) -> bool:
        before, marker, self._rest = split_at(self._rest, self._form.markers, is_end)
        if before:
            self._out.append(ReasoningDelta(before) if self._part is Part.THINKING else TextDelta(before))
        return marker is not None and self._open(marker)

    def _open(self, marker: str) -> bool:
        """Go on to what a marker begins."""
        if marker in self._form.calls and self._has_tools:
            self._reader, self._is_started = CallReader((self._form.argument_key,)), False
            self._held = [self._name]
            return self._go(Part.CALL)
        self._end_name()
        if marker in (self._form.start, self._form.end):
            return self._go(Part.HEADER)
        return self._go(Part.THINKING if marker == self._form.thinking else Part.TEXT)

    def _read_call(self, is_end: bool) -> bool:
        before, marker, self._rest = split_at(self._rest, (self._form.end, self._form.start), is_end)
        if not self._is_started:
            self._held.append(before)
        self._take_in(self._reader.feed(before))
        if marker is None and not is_end:
            return False
        self._take_in(self._reader.named(self._name.strip()))
        if not self._is_started:
            self._say("".join(self._held))
        self._held, self._name = [], ""
        return marker is not None and self._go(Part.HEADER)

    def _take_in(self, pieces: Iterable[CallPiece]) -> None:
        for piece in pieces:
            if isinstance(piece, Called):
                self._is_started, self._held = True, []
                self._out.append(CallStart(self._count, piece.name))
                self._count += 1
            else:
                self._out.append(CallArguments(self._count - 1, piece))

    def _end_name(self) -> None:
        """What was no name is text."""
        self._say(self._name)
        self._name = ""

    def _say(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))

    def _go(self, part: Part) -> bool:
        self._part = part
        return True


STEPS: Mapping[Part, Callable[[MarkedMessagesReader, bool], bool]] = {
    Part.HEADER: MarkedMessagesReader._read_header,
    Part.THINKING: MarkedMessagesReader._read_body,
    Part.TEXT: MarkedMessagesReader._read_body,
    Part.CALL: MarkedMessagesReader._read_call,
}
"""What reads each place. Of the class: a reader that held its own methods would be garbage for the collector."""
