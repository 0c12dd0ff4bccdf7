"""Word problems whose numbers are too large to work out in a reply, and the code that works them out.

Made for a tiny policy: a few forms, short sentences, whole numbers. Which calculation is asked for follows from the
words alone. Held-out problems have names and things that training problems never have.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agentic.tasks.problems.problem import Problem

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jill", "Kai", "Lena")
HELD_OUT_NAMES = ("Max", "Nora", "Otto", "Pia")
THINGS = ("apples", "beads", "cards", "coins", "eggs", "nails", "pens", "plums", "shells", "stamps")
HELD_OUT_THINGS = ("bolts", "figs", "keys")


class Form(NamedTuple):
    """A sentence with three numbers, and the code for its answer."""

    text: str
    code: str
    draw: Callable[[random.Random], tuple[int, int, int]]


def _small(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(12, 99), rng.randint(12, 99), rng.randint(12, 99)


def _many(rng: random.Random) -> tuple[int, int, int]:
    b, c = rng.randint(12, 30), rng.randint(12, 30)
    return b * c + rng.randint(10, 99), b, c


FORMS = (
    Form("{name} has {a} bags of {b} {things} and {c} more. How many {things}?", "{a}*{b}+{c}", _small),
    Form("{name} has {a} bags of {b} {things} and loses {c}. How many {things}?", "{a}*{b}-{c}", _small),
    Form("{name} had {a} {things} and gave {b} to each of {c} friends. How many {things}?", "{a}-{b}*{c}", _many),
    Form("{name} put {a} {things} in each of {b} rows on {c} tables. How many {things}?", "{a}*{b}*{c}", _small),
    Form("{name} has {a} {things}, finds {b} and buys {c}. How many {things}?", "{a}+{b}+{c}", _small),
)
"""Ask for different calculations in words that differ little."""


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A problem and how it is worked out."""

    problem: Problem
    code: str
    """One expression."""
    form: int


def generate(count: int, seed: str, *, held_out: bool = False) -> list[WordProblem]:
    """`count` different problems; the same arguments give the same ones everywhere."""
    rng = random.Random(seed)
    names, things = (HELD_OUT_NAMES, HELD_OUT_THINGS) if held_out else (NAMES, THINGS)
    found: dict[str, WordProblem] = {}
    while len(found) < count:
        made = _make(rng, names, things)
        found.setdefault(made.problem.question, made)
    return list(found.values())


def _make(rng: random.Random, names: tuple[str, ...], things: tuple[str, ...]) -> WordProblem:
    index = rng.randrange(len(FORMS))
    form = FORMS[index]
    numbers = dict(zip("abc", form.draw(rng), strict=True))
    question = form.text.format(name=rng.choice(names), things=rng.choice(things), **numbers)
    code = form.code.format(**numbers)
    return WordProblem(Problem(question, str(value_of(code)), {"code": code}), code, index)


def value_of(code: str) -> int:
    """The value of an expression of this module: products of whole numbers, added and subtracted."""
    total = 0
    for term in code.replace("-", "+-").split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += product
    return total
