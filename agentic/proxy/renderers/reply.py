"""One sampled turn, from text to thinking, text and calls, as it arrives; a whole turn is read by the same code.

Nothing is given out that later text could take back: the beginning of a marker is kept until it is one or is not, and
so are white space that may end the thinking and a tool call until it is known to be one (see `calls`). Work for each
piece is linear in the piece. Decisions, each with its reason in docs/proxy-parsers.md:

- Thinking is what `<think>` (or what the form has for it) opens at the very beginning, or what the prompt has opened.
  White space around it, and line breaks between it and the text, belong to the form.
- A call inside thinking is a draft if the thinking is closed later, and real if it never is.
- Text is shown up to the first call; after that, only what was written as a call and is none.
- Calls are looked for only when there are tools.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto

from ..conversation import CallArguments, CallStart, Json, ReasoningDelta, ReplyDelta, TextDelta
from .calls import BlockReader, Called, CallPiece, CallReader
from .forms import AnyCallForm, CallForm, MarkedForm, QuotedForm, ReplyForm, TaggedForm, openings_of
from .marked_calls import MarkedReader
from .markers import split_at
from .quoted_calls import QuotedReader
from .tagged_calls import TaggedReader


class Part(Enum):
    """Where in the reply the next character belongs."""

    BEGINNING = auto()
    LABEL = auto()
    THINKING = auto()
    DRAFT = auto()
    AFTER_THINKING = auto()
    TEXT = auto()
    CALL = auto()
    BETWEEN_CALLS = auto()
    AFTER_CALLS = auto()


class ReplyReader:
    """Reads one reply piece by piece."""

    def __init__(self, form: ReplyForm, tools: Sequence[Json] | None) -> None:
        self._form = form
        self._marks = form.marks
        self._calls = form.calls
        self._tools = tools or ()
        self._has_tools = bool(tools)
        self._call_markers = openings_of(form.calls) if tools and form.calls.closing else ()
        self._thinking_markers = (form.marks.closing, form.marks.opening, *self._call_markers)
        self._rest = ""
        self._lead: list[str] = []
        """White space before anything else."""
        self._held: list[str] = []
        self._space: list[str] = []
        """White space that may end the thinking."""
        self._has_thought = False
        self._reader: BlockReader = CallReader(())
        self._is_started = False
        self._count = 0
        self._out: list[ReplyDelta] = []
        self._part = Part.BEGINNING

    def feed(self, text: str) -> list[ReplyDelta]:
        """What is certain after this text too."""
        return self._run(text, is_end=False)

    def finish(self) -> list[ReplyDelta]:
        """The rest."""
        return self._run("", is_end=True)

    def _run(self, text: str, is_end: bool) -> list[ReplyDelta]:
        self._rest += text
        while STEPS[self._part](self, is_end):
            pass
        out, self._out = self._out, []
        return merged(out)

    # Each step takes from `_rest` what it can and says whether another part goes on with what is left.

    def _begin(self, is_end: bool) -> bool:
        text = self._rest.lstrip()
        self._lead.append(self._rest[: len(self._rest) - len(text)])
        self._rest = text
        if self._form.thinking != "never" and self._may_become(text, self._marks.opening, is_end):
            return False
        if self._form.thinking != "never" and text.startswith(self._marks.opening):
            self._rest = text.removeprefix(self._marks.opening)
            return self._go(Part.LABEL if self._marks.label else Part.THINKING)
        may_be_call = self._has_tools and self._calls.closing is None and self._form.thinking != "opened"
        if may_be_call and self._may_become(text, self._calls.opening, is_end):
            return False
        self._rest = "".join(self._lead) + text
        if self._form.thinking == "opened":
            return self._go(Part.THINKING)
        if may_be_call and text.startswith((self._calls.opening, "{")):
            return self._open_call()
        self._has_tools = self._has_tools and not may_be_call
        return self._go(Part.TEXT)

    def _skip_label(self, is_end: bool) -> bool:
        if self._may_become(self._rest, self._marks.label, is_end):
            return False
        self._rest = self._rest.removeprefix(self._marks.label)
        return self._go(Part.THINKING)

    def _think(self, is_end: bool) -> bool:
        before, marker = self._split(self._thinking_markers, is_end)
        self._add_thinking(before)
        if marker is None or marker == self._marks.opening:
            return marker is not None
        if marker == self._marks.closing:
            self._space.clear()
            return self._go(Part.AFTER_THINKING)
        self._held = [marker]
        return self._go(Part.DRAFT)

    def _draft(self, is_end: bool) -> bool:
        before, marker = self._split((self._marks.closing,), is_end)
        self._held.append(before)
        if marker is None and not is_end:
            return False
        draft = "".join(self._held)
        self._held = []
        if marker is None:
            self._rest = draft
            self._space.clear()
            return self._go(Part.TEXT)
        self._add_thinking(draft.replace(self._marks.opening, ""))
        self._space.clear()
        return self._go(Part.AFTER_THINKING)

    def _skip_line_breaks(self, _is_end: bool) -> bool:
        self._rest = self._rest.lstrip("\n")
        return bool(self._rest) and self._go(Part.TEXT)

    def _say(self, is_end: bool) -> bool:
        before, marker = self._split(self._call_markers, is_end)
        self._add_text(before)
        return marker is not None and self._open_call(marker)

    def _seek_call(self, is_end: bool) -> bool:
        if self._calls.closing is not None:
            _, marker = self._split(self._call_markers, is_end)
            return marker is not None and self._open_call(marker)
        self._rest = self._rest.lstrip("; \n\t\r")
        if self._rest.startswith("{"):
            return self._open_call()
        return bool(self._rest) and self._go(Part.AFTER_CALLS)

    def _drop(self, _is_end: bool) -> bool:
        self._rest = ""
        return False

    def _open_call(self, marker: str = "") -> bool:
        self._reader = _block_reader(self._calls, self._tools)
        self._is_started = False
        self._held = [marker] if marker else []
        if marker and marker != self._calls.opening:  # a call without its block
            self._held, self._rest = [], marker + self._rest
        if self._calls.closing is None:
            bare = self._rest.lstrip().removeprefix(self._calls.opening)
            self._held = [self._rest[: len(self._rest) - len(bare)]]
            self._rest = bare
        return self._go(Part.CALL)

    def _call(self, is_end: bool) -> bool:
        closing = self._calls.closing
        before, marker = self._split((closing,) if closing else (), is_end)
        self._read_call(before)
        if marker is None and not is_end and not (closing is None and self._reader.is_closed):
            return False
        self._take_in(self._reader.finish(marker is not None))
        if not self._reader.is_call:
            return self._give_back(marker)
        if closing is None:
            self._rest = self._reader.left
        return self._go(Part.BETWEEN_CALLS)

    def _read_call(self, text: str) -> None:
        if not self._is_started:
            self._held.append(text)
        self._take_in(self._reader.feed(text))

    def _take_in(self, pieces: Iterable[CallPiece]) -> None:
        for piece in pieces:
            if isinstance(piece, Called):
                self._start_call(piece.name)
            else:
                self._out.append(CallArguments(self._count - 1, piece))

    def _start_call(self, name: str) -> None:
        self._is_started = True
        self._held = []
        self._out.append(CallStart(self._count, name))
        self._count += 1

    def _give_back(self, marker: str | None) -> bool:
        """What was no call is text."""
        self._add_text("".join(self._held) + (marker or ""))
        self._held = []
        if self._calls.closing is None:
            self._has_tools = False
        return self._go(Part.BETWEEN_CALLS if self._count else Part.TEXT)

    def _go(self, part: Part) -> bool:
        self._part = part
        return True

    def _may_become(self, text: str, marker: str, is_end: bool) -> bool:
        return not is_end and len(text) < len(marker) and marker.startswith(text)

    def _split(self, markers: tuple[str, ...], is_end: bool) -> tuple[str, str | None]:
        """Text before the first marker, and the marker; both leave `_rest`. Without one, a marker's beginning stays."""
        before, marker, self._rest = split_at(self._rest, markers, is_end)
        return before, marker

    def _add_text(self, text: str) -> None:
        if text:
            self._out.append(TextDelta(text))

    def _add_thinking(self, text: str) -> None:
        if not self._has_thought:
            text = text.lstrip()
        shown = text.rstrip()
        if not shown:
            self._space.append(text)
            return
        self._has_thought = True
        self._out.append(ReasoningDelta("".join(self._space) + shown))
        self._space = [text[len(shown) :]]


STEPS: Mapping[Part, Callable[[ReplyReader, bool], bool]] = {
    Part.BEGINNING: ReplyReader._begin,
    Part.LABEL: ReplyReader._skip_label,
    Part.THINKING: ReplyReader._think,
    Part.DRAFT: ReplyReader._draft,
    Part.AFTER_THINKING: ReplyReader._skip_line_breaks,
    Part.TEXT: ReplyReader._say,
    Part.CALL: ReplyReader._call,
    Part.BETWEEN_CALLS: ReplyReader._seek_call,
    Part.AFTER_CALLS: ReplyReader._drop,
}
"""What reads each part. Of the class: a reader that held its own methods would be garbage that only the collector
finds, and each call leaves two."""


def _block_reader(calls: AnyCallForm, tools: Sequence[Json]) -> BlockReader:
    match calls:
        case CallForm():
            return CallReader(calls.argument_keys)
        case TaggedForm():
            return TaggedReader(calls, tools)
        case MarkedForm():
            return MarkedReader(calls)
        case QuotedForm():
            return QuotedReader(calls)


def merged(deltas: Iterable[ReplyDelta]) -> list[ReplyDelta]:
    """Neighbours of one kind as one."""
    merged: list[ReplyDelta] = []
    for delta in deltas:
        match merged[-1] if merged else None, delta:
            case TextDelta(before), TextDelta(text):
                merged[-1] = TextDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                merged[-1] = ReasoningDelta(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                merged[-1] = CallArguments(index, before + text)
            case _:
                merged.append(delta)
    return merged
