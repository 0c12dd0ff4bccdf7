"""Draws mutants until a split is full: seeded, distinct, and each proved fair before it is kept.

Fair means: the original's calls succeed; the mutant and each rival form fail a hidden check; the shown call fails and
is not a hidden check. Two sets with the same arguments are equal, on any machine.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agentic.tasks.errors import DataError
from agentic.tasks.mutation.arguments import Argument, draw_argument
from agentic.tasks.mutation.forms import PHRASES, Kind, rival_forms, wrong_forms
from agentic.tasks.mutation.functions import Filling, Hole, call_function
from agentic.tasks.mutation.templates import HELD_OUT_NOUNS, TRAINING, TRAINING_NOUNS, UNSEEN, Template

CALLS_DRAWN = 14
"""Calls drawn for each function; one failing call is shown, the others are the hidden checks."""
LEAST_HIDDEN = 6
"""Fewer distinct calls than this leave too little to tell forms apart."""
LONGEST_INSTRUCTION = 100
"""Characters; the prompt of the demo's policy ends at 128 tokens, and digits are a token each."""
DRAWS_PER_MUTANT = 400
"""A shape that needs more draws than this for one mutant has run out of distinct ones."""


@dataclass(frozen=True)
class Mutant:
    """One repair task before it becomes a folder."""

    template: str
    kind: Kind
    name: str
    source: str
    fixed: str
    holes: tuple[Hole, ...]
    """Documented places by line; exactly one is wrong."""
    shown: tuple[tuple[Argument, ...], str, str]
    """Arguments of the call in the instruction, what it gives, what it should give."""
    hidden: tuple[tuple[tuple[Argument, ...], str], ...]
    """Arguments and the expected `repr`."""

    @property
    def wrong(self) -> Hole:
        return next(hole for hole in self.holes if hole.is_wrong)

    @property
    def instruction(self) -> str:
        arguments, got, expected = self.shown
        call = f"{self.name}({', '.join(map(repr, arguments))})"
        return f"Repair mod.py: {call} gives {got}, not {expected}."


@dataclass(frozen=True)
class Recipe:
    """What a split is drawn from."""

    templates: Sequence[Template] = TRAINING
    nouns: Sequence[str] = TRAINING_NOUNS
    two_places: float = 0.1
    """Share of functions with two documented places."""
    made_up: float = 0.0
    """Share of nouns that are random syllables, so that unseen nouns read as nouns."""
    taken: frozenset[str] = field(default_factory=frozenset)
    """Sources that may not occur again."""


NEW_TEMPLATE = Recipe(templates=UNSEEN, nouns=HELD_OUT_NOUNS, two_places=0.0)


def generate(count: int, seed: str, recipe: Recipe) -> list[Mutant]:
    """`count` distinct mutants with the kinds in turn, so that each kind has its equal share."""
    rng = random.Random(seed)
    seen = set(recipe.taken)
    turns = _template_turns(recipe, rng)
    mutants: list[Mutant] = []
    while len(mutants) < count:
        mutant = _draw_unseen(next(turns), recipe, rng, seen)
        seen.add(mutant.source)
        mutants.append(mutant)
    return mutants


def _template_turns(recipe: Recipe, rng: random.Random) -> Iterator[Template]:
    single = [template for template in recipe.templates if template.second is None]
    double = [template for template in recipe.templates if template.second is not None]
    by_kind = {kind: [template for template in single if template.kind is kind] for kind in Kind}
    while True:
        for kind in rng.sample(list(Kind), len(Kind)):
            yield rng.choice(double if double and rng.random() < recipe.two_places else by_kind[kind])


def _draw_unseen(template: Template, recipe: Recipe, rng: random.Random, seen: set[str]) -> Mutant:
    for _ in range(DRAWS_PER_MUTANT):
        mutant = _draw(template, recipe, rng)
        if mutant is not None and mutant.source not in seen:
            return mutant
    raise DataError(f"{len(seen)} mutants used up what {template.name} can give: ask for fewer tasks")


def _draw(template: Template, recipe: Recipe, rng: random.Random) -> Mutant | None:
    noun = made_up_noun(rng) if rng.random() < recipe.made_up else rng.choice(recipe.nouns)
    kinds = {"@h": template.kind} if template.second is None else {"@h": template.kind, "@g": template.second}
    right = {mark: rng.choice(list(PHRASES[kind])) for mark, kind in kinds.items()}
    filling = Filling(template, noun, rng.choice(template.decoys or (("", ""),)), right)
    mark = rng.choice(list(kinds))
    form = rng.choice(wrong_forms(kinds[mark], right[mark]))
    calls = _distinct_calls(template, rng)
    expected = call_function(filling.source(right), filling.name(), calls)
    if any(text.endswith("Error") for text in expected) or len(calls) <= LEAST_HIDDEN:
        return None
    return _judge(filling, mark, form, calls, expected, rng)


def _judge(
    filling: Filling,
    mark: str,
    form: str,
    calls: Sequence[tuple[Argument, ...]],
    expected: Sequence[str],
    rng: random.Random,
) -> Mutant | None:
    """The mutant if every rival form fails a check that stays hidden, else nothing."""
    source = filling.source({**filling.right, mark: form})
    given = call_function(source, filling.name(), calls)
    failing = [index for index, text in enumerate(given) if text != expected[index]]
    if not failing:
        return None
    shown = rng.choice(failing)
    hidden = [index for index in range(len(calls)) if index != shown]
    for rival in rival_forms(filling.kind_of(mark), filling.right[mark]):
        results = call_function(filling.source({**filling.right, mark: rival}), filling.name(), calls)
        if all(results[index] == expected[index] for index in hidden):
            return None
    mutant = Mutant(
        template=filling.template.name,
        kind=filling.kind_of(mark),
        name=filling.name(),
        source=source,
        fixed=filling.source(filling.right),
        holes=_holes(filling, {**filling.right, mark: form}),
        shown=(calls[shown], given[shown], expected[shown]),
        hidden=tuple((calls[index], expected[index]) for index in hidden),
    )
    return mutant if len(mutant.instruction) <= LONGEST_INSTRUCTION else None


def _holes(filling: Filling, forms: dict[str, str]) -> tuple[Hole, ...]:
    holes = (Hole(filling.line_of(m), filling.kind_of(m), forms[m], right) for m, right in filling.right.items())
    return tuple(sorted(holes, key=lambda hole: hole.line))


def _distinct_calls(template: Template, rng: random.Random) -> list[tuple[Argument, ...]]:
    drawn = (tuple(draw_argument(name, rng) for name in template.arguments) for _ in range(CALLS_DRAWN))
    return list({repr(call): call for call in drawn}.values())


def made_up_noun(rng: random.Random) -> str:
    """Two or three random syllables."""
    return "".join(rng.choice("bcdfglmnprstv") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))
