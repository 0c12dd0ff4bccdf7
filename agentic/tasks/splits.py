"""Splits by a recorded seed: the same ids and seed give the same split on any machine, in any order of arrival."""

import hashlib
from collections.abc import Iterable

TRAIN = "train"
HELD_OUT = "held-out"
SAME_TEMPLATE = "same-template"
NEW_TEMPLATE = "new-template"


def split_ids(ids: Iterable[str], held_out: int, seed: int) -> dict[str, list[str]]:
    """`held_out` of the ids by the order of their seeded digests, the others for training; both sorted by id."""
    ranked = sorted(set(ids), key=lambda task_id: hashlib.sha256(f"{seed}/{task_id}".encode()).digest())
    return {TRAIN: sorted(ranked[held_out:]), HELD_OUT: sorted(ranked[:held_out])}
