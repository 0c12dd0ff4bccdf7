"""Reads tool calls whose name and whose JSON arguments stand between markers of their own, while they are sampled.

As in `calls`, arguments are given out as they are written, good JSON or not, once they have begun with a brace; what
was no call by then is none. Work for each piece is linear in the piece.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from .block_steps import SteppingReader
from .calls import LONGEST_NAME, Called, CallPiece
from .forms import MarkedForm
from .markers import split_at


class Place(Enum):
    """What is expected next in the block."""

    BEFORE_CALL = auto()
    NAME = auto()
    BEFORE_ARGUMENTS = auto()
    ARGUMENTS = auto()


class MarkedReader(SteppingReader):
    """The calls of one block: feed it the text between the block's markers."""

    def __init__(self, form: MarkedForm) -> None:
        super().__init__()
        self._form = form
        self._name = ""
        self._place = Place.BEFORE_CALL

    def finish(self, is_closed: bool) -> list[CallPiece]:
        """What may have been the beginning of a marker."""
        if self._place is Place.ARGUMENTS and self._rest:
            self._out.append(self._rest)
        return self._given()

    def _step(self) -> bool:
        return STEPS[self._place](self)

    def _seek_call(self) -> bool:
        _, found, self._rest = split_at(self._rest, (self._form.name_open,), is_end=False)
        return found is not None and self._go(Place.NAME)

    def _take_name(self) -> bool:
        written, found, rest = split_at(self._rest, (self._form.name_end,), is_end=False)
        if len(written) > LONGEST_NAME:
            self._rest = self._rest[len(written) :] if found is None else found + rest
            return self._go(Place.BEFORE_CALL)
        if found is None:
            return False
        self._rest, self._name = rest, self._form.name_of(written)
        return self._go(Place.BEFORE_ARGUMENTS if self._name else Place.BEFORE_CALL)

    def _begin_arguments(self) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest:
            return False
        if not self._rest.startswith("{"):
            return self._go(Place.BEFORE_CALL)
        self._is_call = True
        self._out.append(Called(self._name))
        return self._go(Place.ARGUMENTS)

    def _take_arguments(self) -> bool:
        text, found, self._rest = split_at(self._rest, (self._form.arguments_end,), is_end=False)
        if text:
            self._out.append(text)
        return found is not None and self._go(Place.BEFORE_CALL)

    def _go(self, place: Place) -> bool:
        self._place = place
        return True


STEPS: Mapping[Place, Callable[[MarkedReader], bool]] = {
    Place.BEFORE_CALL: MarkedReader._seek_call,
    Place.NAME: MarkedReader._take_name,
    Place.BEFORE_ARGUMENTS: MarkedReader._begin_arguments,
    Place.ARGUMENTS: MarkedReader._take_arguments,
}
"""What reads each place. Of the class: a reader that held its own methods would be garbage for the collector."""
