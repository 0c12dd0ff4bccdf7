"""The kinds of mistakes: for each kind, its interchangeable code forms and the phrase that calls for each.

A form is the literal text in the source, blanks included where operators have them. Within a kind every form can stand
where another stands and still compile, so the docstring's phrase is the only thing that tells which one is right.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Kind(StrEnum):
    """One kind of mistake."""

    BOUNDS = "bounds"
    OPERATORS = "operators"
    FOLD = "fold"
    INDEX = "index"
    SLICE = "slice"
    RANGE = "range"
    SWAP = "swap"
    GUARD = "guard"


UNGUARDED = ")"
"""What a call looks like whose guard is missing: nothing before the closing parenthesis."""

PHRASES: Mapping[Kind, Mapping[str, str]] = MappingProxyType(
    {
        Kind.BOUNDS: {
            " < ": "below",
            " <= ": "within",
            " > ": "above",
            " >= ": "reaching",
            " == ": "matching",
            " != ": "unlike",
        },
        Kind.OPERATORS: {" + ": "sum", " - ": "difference", " * ": "product", " // ": "quotient", " % ": "remainder"},
        Kind.FOLD: {"sum(": "total", "max(": "largest", "min(": "smallest", "len(": "number"},
        Kind.INDEX: {"[0]": "first", "[1]": "second", "[2]": "third", "[-1]": "last", "[-2]": "penultimate"},
        Kind.SLICE: {"[:n]": "head", "[n:]": "rest", "[-n:]": "tail", "[:-n]": "trunk"},
        Kind.RANGE: {"(n)": "positions", "(1, n)": "cuts", "(n + 1)": "sizes", "(1, n + 1)": "ranks"},
        Kind.SWAP: {
            "(a, b, c)": "abc",
            "(a, c, b)": "acb",
            "(b, a, c)": "bac",
            "(b, c, a)": "bca",
            "(c, a, b)": "cab",
            "(c, b, a)": "cba",
        },
        Kind.GUARD: {
            ", default=0)": "zero",
            ", default=1)": "one",
            ", default=2)": "two",
            ", default=3)": "three",
            ", default=None)": "None",
        },
    }
)
"""Kind → form → the phrase of the docstring that calls for it: one word each, since the demo's policy copies it.

Of n things: positions count from 0, ranks from 1; sizes are those of their subsets, cuts the places between them."""


@dataclass(frozen=True)
class Place:
    """One occurrence of a form in a source."""

    line: int
    """Line number in the file, from 1."""
    kind: Kind
    form: str
    """What the file says there."""


def wrong_forms(kind: Kind, right: str) -> tuple[str, ...]:
    """The forms that a mutant of `right` may show. A missing guard is missing: it shows no other guard."""
    if kind is Kind.GUARD:
        return (UNGUARDED,)
    return tuple(form for form in PHRASES[kind] if form != right)


def rival_forms(kind: Kind, right: str) -> tuple[str, ...]:
    """Every other form of the kind, the missing guard included: none of them may pass the hidden checks."""
    others = tuple(form for form in PHRASES[kind] if form != right)
    return (*others, UNGUARDED) if kind is Kind.GUARD else others


_FORM_KINDS: Mapping[str, Kind] = MappingProxyType({form: kind for kind, forms in PHRASES.items() for form in forms})
_ANY_FORM = re.compile("|".join(re.escape(form) for form in sorted(_FORM_KINDS, key=len, reverse=True)))


def scan_places(source: str) -> Iterator[Place]:
    """All forms in a function's body, right or wrong (the signature and the docstring are lines 1 and 2)."""
    for number, line in enumerate(source.splitlines(), 1):
        if number > 2:
            for match in _ANY_FORM.finditer(line):
                yield Place(number, _FORM_KINDS[match.group()], match.group())
