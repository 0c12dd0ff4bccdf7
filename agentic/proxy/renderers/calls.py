"""Reads a tool call `{"name": ..., "arguments": {...}}` while it is sampled, without waiting for its end.

Arguments are given out as they are written, character by character, since a client has them before anybody can know
whether they are good JSON. So the rule is the same for a whole text and for a stream: an object whose name is known and
whose arguments have begun with a brace is a call, and its arguments are what was written, good JSON or not. Anything
else is no call. Where a value ends is found by brackets and quotes alone, in time linear in the text.
"""

import json
import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

LONGEST_NAME = 256
"""Characters of a key or name with quotes; a longer one is no call, so what is kept back stays small."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_IN_STRING = re.compile(r'["\\]')
_BETWEEN = re.compile(r'["{}\[\]]')
_AFTER_PLAIN = re.compile(r"[,}\]\s]")


@dataclass(frozen=True, slots=True)
class Called:
    """A call is one for certain; its arguments follow."""

    name: str


type CallPiece = Called | str
"""What a reader gives out: a call that begins, or more of its arguments."""


class BlockReader(Protocol):
    """Reads what stands between the markers of calls. Fed once, from the first character to the last."""

    @property
    def is_call(self) -> bool:
        """Whether there is a call for certain, whatever follows."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the block has ended by itself, for forms without a closing marker."""
        ...

    @property
    def left(self) -> str:
        """Text after a block that ended by itself."""
        ...

    def feed(self, text: str) -> list[CallPiece]:
        """What is certain after this text too."""
        ...

    def finish(self, is_closed: bool) -> list[CallPiece]:
        """The rest: the block was closed by its marker, or the turn ended within it."""
        ...


class Place(Enum):
    """What is expected next in the object."""

    OPENING = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    INSIDE = auto()
    AFTER = auto()
    CLOSED = auto()
    BROKEN = auto()


class ValueSpan:
    """Finds the end of one JSON value that arrives in pieces."""

    def __init__(self, first: str) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self._is_plain = first not in '"{['

    def end(self, text: str) -> int | None:
        """Where in this piece the value ends, None if it goes on."""
        if self._is_plain:
            found = _AFTER_PLAIN.search(text)
            return found.start() if found else None
        position = 0
        while position < len(text):
            position = self._next(text, position)
            if not self._depth and not self._in_string:
                return position
        return None

    def _next(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        found = (_IN_STRING if self._in_string else _BETWEEN).search(text, position)
        if found is None:
            return len(text)
        match found.group():
            case '"':
                self._in_string = not self._in_string
            case "\\":
                self._escaped = True
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
        return found.end()


@dataclass
class CallReader:
    """One call: feed it the text of the object."""

    argument_keys: tuple[str, ...]
    name: str | None = None
    has_arguments: bool = False
    place: Place = Place.OPENING
    _rest: str = ""
    _key: str = ""
    _span: ValueSpan | None = None
    _held: list[str] = field(default_factory=list)
    _keeps: bool = False
    _is_given: bool = False

    @property
    def is_call(self) -> bool:
        """Whether this is a call for certain, whatever follows."""
        return self.name is not None and self.has_arguments

    @property
    def is_closed(self) -> bool:
        """Whether the object is whole."""
        return self.place is Place.CLOSED

    @property
    def left(self) -> str:
        """Text after the closed object."""
        return self._rest

    def feed(self, text: str) -> list[CallPiece]:
        """The call once it is one, and text of the arguments that may be given out now."""
        if self.place in (Place.BROKEN, Place.CLOSED):
            return []
        self._rest += text
        while self._step():
            pass
        return self._given()

    def named(self, name: str) -> list[CallPiece]:
        """What was kept for want of a name, which is said elsewhere if the object has none."""
        if self.name is None and name:
            self.name = name
        return self._given()

    def _given(self) -> list[CallPiece]:
        if self.name is None or not self.has_arguments or not self._held:
            return []
        given: list[CallPiece] = ["".join(self._held)]
        self._held.clear()
        if not self._is_given:
            self._is_given = True
            given.insert(0, Called(self.name))
        return given

    def finish(self, is_closed: bool) -> list[CallPiece]:
        """Nothing: arguments are what was written."""
        return []

    def _step(self) -> bool:
        if self.place is Place.INSIDE:
            return self._take_inside()
        if self.place in (Place.CLOSED, Place.BROKEN):
            return False
        self._rest = self._rest.lstrip()
        return bool(self._rest) and self._take(self._rest[0])

    def _take(self, first: str) -> bool:
        match self.place, first:
            case Place.OPENING, "{":
                return self._go(Place.FIRST_KEY)
            case Place.FIRST_KEY | Place.AFTER, "}":
                return self._go(Place.CLOSED)
            case Place.FIRST_KEY | Place.KEY, '"':
                return self._take_key()
            case Place.COLON, ":":
                return self._go(Place.VALUE)
            case Place.AFTER, ",":
                return self._go(Place.KEY)
            case Place.VALUE, _:
                return self._take_value(first)
        return self._break()

    def _go(self, place: Place) -> bool:
        self._rest = self._rest[1:]
        self.place = place
        return True

    def _break(self) -> bool:
        self.place = Place.BROKEN
        return False

    def _take_string(self) -> str | None:
        found = _STRING.match(self._rest)
        if found is None or found.end() > LONGEST_NAME:
            if len(self._rest) > LONGEST_NAME:
                self._break()
            return None
        self._rest = self._rest[found.end() :]
        try:
            return str(json.loads(found.group()))
        except ValueError:
            self._break()
            return None

    def _take_key(self) -> bool:
        key = self._take_string()
        if key is None:
            return False
        self._key, self.place = key, Place.COLON
        return True

    def _take_value(self, first: str) -> bool:
        if self._key == "name" and self.name is None:
            name = self._take_string() if first == '"' else ""
            if name is None:
                return False
            if not name:
                return self._break()
            self.name, self.place = name, Place.AFTER
            return True
        self._keeps = self._key in self.argument_keys and not self.has_arguments
        if self._keeps:
            if first != "{":
                return self._break()
            self.has_arguments = True
        self._span, self.place = ValueSpan(first), Place.INSIDE
        return True

    def _take_inside(self) -> bool:
        if self._span is None or not self._rest:
            return False
        end = self._span.end(self._rest)
        piece, self._rest = (self._rest, "") if end is None else (self._rest[:end], self._rest[end:])
        if self._keeps:
            self._held.append(piece)
        if end is not None:
            self._span, self.place = None, Place.AFTER
        return end is not None
