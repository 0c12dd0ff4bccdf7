"""Which images a task set needs, and how the work is split. Pure: no file is read here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Need:
    """One image, and the tasks that run in it."""

    environment_hash: str
    tasks: tuple[str, ...]


def plan_images(environments: Iterable[tuple[str, str]]) -> list[Need]:
    """Pairs of task and environment hash → each image once, in the order in which tasks first ask for it."""
    tasks: dict[str, list[str]] = {}
    for task, environment in environments:
        tasks.setdefault(environment, []).append(task)
    return [Need(environment, tuple(names)) for environment, names in tasks.items()]


def plan_shards(task_names: Sequence[str], shards: int) -> list[list[str]]:
    """Split into at most so many parts, none empty, sizes differing by one at most; the same for any order of names.

    Neighbours in the alphabet stay together, since tasks made from one template tend to share their image."""
    if shards < 1:
        raise ValueError(f"shards is {shards}: at least one is needed")
    names = sorted(set(task_names))
    count = min(shards, len(names))
    bounds = [len(names) * i // count for i in range(count + 1)] if count else []
    return [names[start:end] for start, end in pairwise(bounds)]


def deal[T](items: Sequence[T], keys: Sequence[str], index: int, shards: int) -> list[T]:
    """What one of so many parts gets: items of the same key are in the same part, and keys are dealt out in turn."""
    owners = {key: number % shards for number, key in enumerate(dict.fromkeys(keys))}
    return [item for item, key in zip(items, keys, strict=True) if owners[key] == index]
