"""The proxy's reply parsers: ids to text to deltas; a whole turn is parsed by the same code as one that arrives."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from ..conversation import Json, Message, ReplyDelta, TextDelta, join_deltas
from .base import ReplyParser
from .detokenizer import Detokenizer
from .forms import ReplyForm
from .reply import ReplyReader, merged
from .tokens import TextTokenizer


class TextReader(Protocol):
    """Reads a reply's text piece by piece."""

    def feed(self, text: str) -> list[ReplyDelta]:
        """What is certain after this text too."""
        ...

    def finish(self) -> list[ReplyDelta]:
        """The rest."""
        ...


class SampledReplyParser:
    """The proxy's ReplyParser over a reader: ids up to the first that ends a turn, as text, read."""

    def __init__(self, detokenizer: Detokenizer, reader: TextReader, ends: Collection[int]) -> None:
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


def reply_parser(
    tokenizer: TextTokenizer, form: ReplyForm, tools: Sequence[Json] | None, ends: Collection[int]
) -> ReplyParser:
    """A parser of one turn in this form."""
    return SampledReplyParser(tokenizer.detokenizer(form.markers), ReplyReader(form, tools), ends)


def whole_reply(parser: ReplyParser, ids: Sequence[int]) -> Message:
    """The message that all ids of a turn are."""
    message = join_deltas([*parser.feed(ids), *parser.finish()])
    calls = tuple(replace(call, id=f"call_{number}") for number, call in enumerate(message.tool_calls))
    return replace(message, tool_calls=calls)


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
