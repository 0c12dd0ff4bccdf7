"""Arguments for calls of mutated functions, drawn by name from a seeded generator."""

import random

from agentic.tasks.errors import DataError

type Argument = int | list[int] | list[list[int]]


def draw_argument(name: str, rng: random.Random) -> Argument:
    """One argument of the named sort; small numbers, since each digit is a token of the prompt."""
    match name:
        case "numbers":
            return _numbers(rng, 4, 6)
        case "numbers or none":
            return [] if rng.random() < 0.4 else _numbers(rng, 3, 4)
        case "rows":
            return [_numbers(rng, 3, 4) for _ in range(rng.randint(2, 3))]
        case "rows or none":
            return [[] if rng.random() < 0.4 else _numbers(rng, 2, 3) for _ in range(2)]
        case "ragged":
            return [_numbers(rng, 1, 4) for _ in range(3)]
        case _:
            return _scalar(name, rng)


def _scalar(name: str, rng: random.Random) -> int:
    spans = {
        "limit": (3, 7),
        "factor": (2, 5),
        "few": (1, 2),
        "size": (2, 7),
        "digit": (1, 9),
        "large": (21, 49),
        "any": (2, 30),
    }
    if name not in spans:
        raise DataError(f"no argument sort is called {name!r}: use one of {', '.join(sorted(spans))} or a list sort")
    return rng.randint(*spans[name])


def _numbers(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randint(1, 9) for _ in range(rng.randint(least, most))]
