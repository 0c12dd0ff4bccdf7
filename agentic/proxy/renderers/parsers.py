"""The proxy's reply parsers: ids to text to deltas; a whole turn is parsed by the same code as one that arrives."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ..conversation import THINK_END, CallArguments, CallStart, Message, ReplyDelta, TextDelta, ToolCall, join_deltas
from .base import ReplyParser
from .detokenizer import Detokenizer
from .forms import ReplyForm
from .reply import ReplyReader, merged, split_at
from .tokens import TextTokenizer


class SampledReplyParser:
    """The proxy's ReplyParser over a reader: ids up to the first that ends a turn, as text, read."""

    def __init__(self, detokenizer: Detokenizer, reader: ReplyReader, ends: Collection[int]) -> None:
        self._detokenizer = detokenizer
        self._reader = reader
        self._ends = ends
        self._has_ended = False

    def feed(self, ids: Sequence[int]) -> list[ReplyDelta]:
        """What is certain after these ids too."""
        if self._has_ended:
            return []
        end = next((position for position, token in enumerate(ids) if token in self._ends), None)
        self._has_ended = end is not None
        return self._reader.feed(self._detokenizer.feed(ids[:end]))

    def finish(self) -> list[ReplyDelta]:
        """The rest."""
        return merged([*self._reader.feed(self._detokenizer.finish()), *self._reader.finish()])


def reply_parser(tokenizer: TextTokenizer, form: ReplyForm, has_tools: bool, ends: Collection[int]) -> ReplyParser:
    """A parser of one turn in this form."""
    return SampledReplyParser(tokenizer.detokenizer(form.markers), ReplyReader(form, has_tools), ends)


def whole_reply(parser: ReplyParser, ids: Sequence[int]) -> Message:
    """The message that all ids of a turn are."""
    message = join_deltas([*parser.feed(ids), *parser.finish()])
    calls = tuple(replace(call, id=f"call_{number}") for number, call in enumerate(message.tool_calls))
    return replace(message, tool_calls=calls)


class HoldingParser:
    """Thinking and text as they are sampled, for forms of calls that only another parser reads.

    From the first sign of a call on, all is held until the end. Then `read_calls` says which calls the ids hold; if it
    says none, what was held is text after all. A sign within thinking that is closed later was a draft, as elsewhere.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        form: ReplyForm,
        opening: str,
        ends: Collection[int],
        read_calls: Callable[[Sequence[int]], Sequence[ToolCall]],
    ) -> None:
        self._detokenizer = detokenizer
        self._reader = ReplyReader(form, has_tools=False)
        self._opening = opening
        self._ends = ends
        self._read_calls = read_calls
        self._ids: list[int] = []
        self._rest = ""
        self._held: list[str] = []

    def feed(self, ids: Sequence[int]) -> list[ReplyDelta]:
        """What comes before the first sign of a call."""
        self._ids.extend(ids)
        return self._take(self._detokenizer.feed([token for token in ids if token not in self._ends]))

    def finish(self) -> list[ReplyDelta]:
        """The calls, or what was none."""
        out = self._take(self._detokenizer.finish())
        held, self._held = "".join(self._held), []
        draft, end, after = held.partition(THINK_END)
        if held and end and self._reader.is_thinking:
            out += self._reader.feed(draft + end)
            self._rest = after
            out += self._take("")
            held = "".join(self._held)
        calls = self._read_calls(self._ids) if held else ()
        out += self._reader.feed("" if calls else held + self._rest)
        out += self._reader.finish()
        for index, call in enumerate(calls):
            out += [CallStart(index, call.name), CallArguments(index, call.arguments)]
        return merged(out)

    def _take(self, text: str) -> list[ReplyDelta]:
        if self._held:
            self._held.append(text)
            return []
        before, marker, self._rest = split_at(self._rest + text, (self._opening,), is_end=False)
        if marker is not None:
            self._held, self._rest = [marker + self._rest], ""
        return self._reader.feed(before)


class PlainTextParser:
    """All ids as text."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def feed(self, ids: Sequence[int]) -> list[ReplyDelta]:
        """Whole characters."""
        return _text_deltas(self._detokenizer.feed(ids))

    def finish(self) -> list[ReplyDelta]:
        """What an unfinished character leaves."""
        return _text_deltas(self._detokenizer.finish())


def _text_deltas(text: str) -> list[ReplyDelta]:
    return [TextDelta(text)] if text else []
