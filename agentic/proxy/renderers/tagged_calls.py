"""Reads tool calls that are written in tags, such as `<function=run><parameter=cmd>...`, while they are sampled.

Clients are promised arguments as JSON, so tags are turned into it as they come: a parameter whose schema says `string`
is given out character by character; any other is given out when its value is whole, as the JSON that it is, or as a
string where it is none. A call is one for certain when its first value begins, or when it ends without any; what was
no call by then is no call at all. Of two parameters with one name the first counts, since it has been given out.

Arguments are closed by what closes the call. Where sampling ended before that they stay open, so a client sees that
they are not whole instead of running half a call. Work for each piece is linear in the piece.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from ..conversation import Json
from .block_steps import SteppingReader
from .calls import LONGEST_NAME, Called, CallPiece
from .forms import TaggedForm
from .json_text import as_json, escaped
from .markers import split_at

KINDS = {"true": True, "false": False}
"""Whether a value is a string, where its parameter says so."""


class Place(Enum):
    """What is expected next in the block."""

    BEFORE_CALL = auto()
    NAME = auto()
    BEFORE_KEY = auto()
    KEY = auto()
    BEFORE_VALUE = auto()
    VALUE = auto()
    BROKEN = auto()


class TaggedReader(SteppingReader):
    """The calls of one block: feed it the text between the block's markers."""

    def __init__(self, form: TaggedForm, tools: Sequence[Json]) -> None:
        super().__init__()
        self._form = form
        self._tools = tools
        self._place = Place.NAME if form.name_open is None else Place.BEFORE_CALL
        own_end = (form.name_end,) if form.name_open is not None else ()
        self._name_ends = _present(*own_end, form.key_open, form.call_end)
        self._key_ends = _present(form.key_end, form.value_open)
        self._before_key = _present(form.key_open, form.call_end, form.name_open)
        self._before_value = _present(form.value_open, form.key_open, form.call_end)
        self._name = self._key = self._kind = ""
        self._begun = False
        self._keys: set[str] = set()
        self._value = _Value(is_string=False, is_shown=False, trims=False)

    def finish(self, is_closed: bool) -> list[CallPiece]:
        """The rest, when the block has been closed, or else the turn has ended within it."""
        if self._place is Place.VALUE:
            self._say(self._value.text(self._rest) + self._value.unfinished())
        if is_closed and self._place is Place.NAME and self._form.name_open is None:
            name = self._rest.strip()
            if _parameters(self._tools, name) is not None:
                self._name, self._place = name, Place.BEFORE_KEY
        if is_closed and self._place is Place.BEFORE_KEY:
            self._end_call()
        return self._given()

    def _step(self) -> bool:
        return STEPS[self._place](self)

    def _seek_call(self) -> bool:
        return self._skip_to(self._form.name_open or "", Place.NAME)

    def _take_name(self) -> bool:
        taken = self._take(*self._name_ends)
        if taken is None:
            return False
        (self._name, ending), self._begun, self._keys = taken, False, set()
        return self._go_past(ending) if ending != self._form.name_end else self._go(Place.BEFORE_KEY)

    def _seek_key(self) -> bool:
        return self._skip_to_any(self._before_key)

    def _take_key(self) -> bool:
        taken = self._take(*self._key_ends)
        if taken is None:
            return False
        (self._key, ending), self._kind = taken, ""
        if self._form.kind_open is not None:
            self._key, _, self._kind = self._key.partition(self._form.kind_open)
        is_value_next = self._form.value_open is None or ending == self._form.value_open
        return self._begin_value() if is_value_next else self._go(Place.BEFORE_VALUE)

    def _seek_value(self) -> bool:
        return self._skip_to_any(self._before_value)

    def _begin_value(self) -> bool:
        is_string = KINDS.get(self._kind, self._is_string_by_schema())
        is_new = self._key not in self._keys
        self._value = _Value(is_string, is_new, self._form.has_line_breaks)
        if is_new:
            self._begin_call()
            self._say(", " if self._keys else "")
            self._keys.add(self._key)
            self._say(f"{json.dumps(self._key, ensure_ascii=False)}: {self._value.beginning()}")
        return self._go(Place.VALUE)

    def _is_string_by_schema(self) -> bool:
        schema = (_parameters(self._tools, self._name) or {}).get(self._key)
        return isinstance(schema, dict) and schema.get("type") in ("string", ["string"])

    def _take_value(self) -> bool:
        text, marker, self._rest = split_at(self._rest, (self._form.value_end,), is_end=False)
        self._say(self._value.text(text))
        if marker is None:
            return False
        self._say(self._value.ending())
        return self._go(Place.BEFORE_KEY)

    def _drop(self) -> bool:
        self._rest = ""
        return False

    def _begin_call(self) -> None:
        if self._begun:
            return
        self._begun = self._is_call = True
        self._out += [Called(self._name), "{"]

    def _end_call(self) -> None:
        self._begin_call()
        self._say("}")

    def _say(self, text: str) -> None:
        if text:
            self._out.append(text)

    def _skip_to(self, marker: str, place: Place) -> bool:
        _, found, self._rest = split_at(self._rest, (marker,), is_end=False)
        return found is not None and self._go(place)

    def _skip_to_any(self, markers: tuple[str, ...]) -> bool:
        _, found, self._rest = split_at(self._rest, markers, is_end=False)
        return found is not None and self._go_past(found)

    def _go_past(self, marker: str) -> bool:
        """Go on after a marker, whatever was expected: a parameter without a value is left out, and a call with any
        ends also where the next one begins."""
        form = self._form
        if marker == form.value_open:
            return self._begin_value()
        if marker == form.key_open:
            return self._go(Place.KEY)
        if marker != form.name_open or self._begun:
            self._end_call()
        return self._go(Place.NAME if marker == form.name_open else Place.BEFORE_CALL)

    def _take(self, *markers: str) -> tuple[str, str] | None:
        """A name, and the marker at which it ends; without one to be named by, this is no call."""
        written, found, rest = split_at(self._rest, markers, is_end=False)
        if found is None and len(written) <= LONGEST_NAME:
            return None
        self._rest, name = rest, written.strip()
        if found is None or not name or len(written) > LONGEST_NAME:
            self._place = Place.BROKEN
            self._drop()
            return None
        return name, found

    def _go(self, place: Place) -> bool:
        self._place = place
        return True


STEPS: Mapping[Place, Callable[[TaggedReader], bool]] = {
    Place.BEFORE_CALL: TaggedReader._seek_call,
    Place.NAME: TaggedReader._take_name,
    Place.BEFORE_KEY: TaggedReader._seek_key,
    Place.KEY: TaggedReader._take_key,
    Place.BEFORE_VALUE: TaggedReader._seek_value,
    Place.VALUE: TaggedReader._take_value,
    Place.BROKEN: TaggedReader._drop,
}
"""What reads each place. Of the class: a reader that held its own methods would be garbage for the collector."""


class _Value:
    """One parameter's value, as JSON text while it comes."""

    def __init__(self, is_string: bool, is_shown: bool, trims: bool) -> None:
        self._is_string = is_string
        self._is_shown = is_shown
        self._trims = trims
        self._is_first = True
        self._kept = ""
        """A line break that may be the last."""
        self._held: list[str] = []

    def beginning(self) -> str:
        return '"' if self._is_string else ""

    def text(self, text: str) -> str:
        """What of the value can be given out."""
        if self._trims and text:
            text = self._trimmed(text)
        if not self._is_string:
            self._held.append(text)
            return ""
        return escaped(text) if self._is_shown else ""

    def ending(self) -> str:
        """The rest of a value that is whole."""
        if not self._is_shown:
            return ""
        return '"' if self._is_string else as_json("".join(self._held))

    def unfinished(self) -> str:
        """The rest of one that is not."""
        if not self._is_shown:
            return ""
        return escaped(self._kept) if self._is_string else "".join(self._held).strip()

    def _trimmed(self, text: str) -> str:
        if self._is_first:
            self._is_first = False
            text = text.removeprefix("\n")
        text = self._kept + text
        self._kept = "\n" if text.endswith("\n") else ""
        return text.removesuffix("\n")


def _present(*markers: str | None) -> tuple[str, ...]:
    return tuple(marker for marker in markers if marker is not None)


def _parameters(tools: Sequence[Json], name: str) -> Json | None:
    """The schemas of a tool's parameters, None if no tool is called so."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            return properties if isinstance(properties, dict) else {}
    return None
