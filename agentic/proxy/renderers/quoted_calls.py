"""Reads tool calls such as `call:run{cmd:<|"|>ls<|"|>,count:3}`, whose object is no JSON, while they are sampled.

The object becomes JSON as it comes: strings character by character; what stands bare (a number, `true`) when it is
whole, as the JSON that it is, or as a string where it is none. A call is one for certain when its brace opens; what was
none by then is none at all. What breaks the form is given out as it is written, as with calls that are JSON, and an
object that sampling left open stays open: a client's own parser says what is wrong. Work for each piece is linear in
the piece.
"""

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from .block_steps import SteppingReader
from .calls import LONGEST_NAME, Called, CallPiece
from .forms import QuotedForm
from .json_text import as_json, escaped
from .markers import split_at

_AFTER_KEY = re.compile(r"[:,{}\[\]]")
_AFTER_BARE = re.compile(r"[,}\]]")
_CLOSING = {"{": "}", "[": "]"}


class Place(Enum):
    """What is expected next in the block."""

    NAME = auto()
    BEGINNING = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    STRING = auto()
    BARE = auto()
    AFTER = auto()
    BROKEN = auto()
    CLOSED = auto()


class QuotedReader(SteppingReader):
    """The call of one block: feed it the text between the block's markers."""

    def __init__(self, form: QuotedForm) -> None:
        super().__init__()
        self._form = form
        self._place = Place.NAME
        self._open: list[str] = []
        """Brackets that are not closed yet."""
        self._key = ""
        self._held: list[str] = []
        """Of a bare value."""

    def finish(self, is_closed: bool) -> list[CallPiece]:
        """What is left of an object that did not end."""
        match self._place:
            case Place.STRING:
                self._say(escaped(self._rest))
            case Place.BARE:
                self._say("".join(self._held).strip())
            case Place.COLON:
                self._say(json.dumps(self._key, ensure_ascii=False))
            case Place.KEY | Place.VALUE:
                self._say(self._rest)
        return self._given()

    def _step(self) -> bool:
        return STEPS[self._place](self)

    def _take_name(self) -> bool:
        written, found, rest = split_at(self._rest, ("{",), is_end=False)
        if found is None and len(written) <= LONGEST_NAME:
            return False
        head, name = written.strip(), written.strip().removeprefix(self._form.name_open).strip()
        if found is None or not head.startswith(self._form.name_open) or not name or len(written) > LONGEST_NAME:
            return self._go(Place.CLOSED)
        self._rest, self._is_call = rest, True
        self._out.append(Called(name))
        return self._descend("{")

    def _begin(self) -> bool:
        first = self._first()
        if not first:
            return False
        if first == _CLOSING[self._open[-1]]:
            return self._ascend()
        return self._go(self._next_place())

    def _take_key(self) -> bool:
        if not self._first() or self._may_become_quote():
            return False
        key, rest = self._written_key()
        if key is None and len(self._rest) <= LONGEST_NAME:
            return False
        if not key or len(key) > LONGEST_NAME:
            return self._go(Place.BROKEN)
        self._key, self._rest = key, rest
        return self._go(Place.COLON)

    def _written_key(self) -> tuple[str | None, str]:
        """A key with what follows it; None where it has no end yet."""
        quote = self._form.quote
        if self._rest.startswith(quote):
            key, found, rest = split_at(self._rest.removeprefix(quote), (quote,), is_end=False)
            return (None if found is None else key), rest
        end = _AFTER_KEY.search(self._rest)
        return (None, "") if end is None else (self._rest[: end.start()].strip(), self._rest[end.start() :])

    def _take_colon(self) -> bool:
        first = self._first()
        if not first:
            return False
        self._say(json.dumps(self._key, ensure_ascii=False))
        if first != ":":
            return self._go(Place.BROKEN)
        self._say(": ")
        self._rest = self._rest[1:]
        return self._go(Place.VALUE)

    def _begin_value(self) -> bool:
        first = self._first()
        if not first or self._may_become_quote():
            return False
        if self._rest.startswith(self._form.quote):
            self._rest = self._rest.removeprefix(self._form.quote)
            self._say('"')
            return self._go(Place.STRING)
        if first in _CLOSING:
            self._rest = self._rest[1:]
            return self._descend(first)
        return self._go(Place.BARE)

    def _take_string(self) -> bool:
        text, found, self._rest = split_at(self._rest, (self._form.quote,), is_end=False)
        self._say(escaped(text))
        if found is None:
            return False
        self._say('"')
        return self._go(Place.AFTER)

    def _take_bare(self) -> bool:
        end = _AFTER_BARE.search(self._rest)
        self._held.append(self._rest if end is None else self._rest[: end.start()])
        self._rest = "" if end is None else self._rest[end.start() :]
        if end is None:
            return False
        text = "".join(self._held).strip()
        self._held.clear()
        if not text:
            return self._go(Place.BROKEN)
        self._say(as_json(text))
        return self._go(Place.AFTER)

    def _go_on(self) -> bool:
        first = self._first()
        if not first:
            return False
        if first == _CLOSING[self._open[-1]]:
            return self._ascend()
        if first != ",":
            return self._go(Place.BROKEN)
        self._rest = self._rest[1:]
        self._say(", ")
        return self._go(self._next_place())

    def _give_as_written(self) -> bool:
        self._say(self._rest)
        self._rest = ""
        return False

    def _end(self) -> bool:
        if self._is_call and self._first():
            return self._go(Place.BROKEN)
        self._rest = ""
        return False

    def _descend(self, bracket: str) -> bool:
        self._open.append(bracket)
        self._say(bracket)
        return self._go(Place.BEGINNING)

    def _ascend(self) -> bool:
        self._rest = self._rest[1:]
        self._say(_CLOSING[self._open.pop()])
        return self._go(Place.AFTER if self._open else Place.CLOSED)

    def _next_place(self) -> Place:
        return Place.KEY if self._open[-1] == "{" else Place.VALUE

    def _first(self) -> str:
        """The next character that is no white space; empty if there is none yet."""
        self._rest = self._rest.lstrip()
        return self._rest[:1]

    def _may_become_quote(self) -> bool:
        return len(self._rest) < len(self._form.quote) and self._form.quote.startswith(self._rest)

    def _say(self, text: str) -> None:
        if text:
            self._out.append(text)

    def _go(self, place: Place) -> bool:
        self._place = place
        return True


STEPS: Mapping[Place, Callable[[QuotedReader], bool]] = {
    Place.NAME: QuotedReader._take_name,
    Place.BEGINNING: QuotedReader._begin,
    Place.KEY: QuotedReader._take_key,
    Place.COLON: QuotedReader._take_colon,
    Place.VALUE: QuotedReader._begin_value,
    Place.STRING: QuotedReader._take_string,
    Place.BARE: QuotedReader._take_bare,
    Place.AFTER: QuotedReader._go_on,
    Place.BROKEN: QuotedReader._give_as_written,
    Place.CLOSED: QuotedReader._end,
}
"""What reads each place. Of the class: a reader that held its own methods would be garbage for the collector."""
