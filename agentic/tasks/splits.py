"""Splits by a recorded seed: the same ids and seed give the same split on any machine, in any order of arrival."""

import hashlib
from collections.abc import Callable, Iterable

TRAIN = "train"
HELD_OUT = "held-out"
SAME_TEMPLATE = "same-template"
NEW_TEMPLATE = "new-template"


def split_ids(ids: Iterable[str], held_out: int, seed: int) -> dict[str, list[str]]:
    """`held_out` of the ids by the order of their seeded digests, the others for training; both sorted by id."""
    ranked = sorted(set(ids), key=lambda task_id: hashlib.sha256(f"{seed}/{task_id}".encode()).digest())
    return {TRAIN: sorted(ranked[held_out:]), HELD_OUT: sorted(ranked[:held_out])}


def split_evenly(ids: Iterable[str], held_out: int, seed: int, group_of: Callable[[str], str]) -> dict[str, list[str]]:
    """The same with each group's share held out, rounded so that the total is right: to the largest remainders first,
    and among equal ones to the larger group."""
    groups: dict[str, list[str]] = {}
    for task_id in sorted(set(ids)):
        groups.setdefault(group_of(task_id), []).append(task_id)
    total = sum(map(len, groups.values()))
    shares = {name: divmod(held_out * len(members), total) for name, members in groups.items()}
    ranked = sorted(groups, key=lambda name: (-shares[name][1], -len(groups[name]), name))
    extra = set(ranked[: held_out - sum(whole for whole, _ in shares.values())])
    parts = [split_ids(members, shares[name][0] + (name in extra), seed) for name, members in groups.items()]
    return {split: sorted(task_id for part in parts for task_id in part[split]) for split in (TRAIN, HELD_OUT)}
