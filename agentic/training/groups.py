"""Which groups of a batch can be compared. Pure.

GRPO rates a rollout against the others of its group. A group that infrastructure left with a single rollout has nothing
to rate it against: verl takes a mean of 0 and a deviation of 1 then, so that a lone success is pushed up by its whole
reward while a lone failure says nothing. Such a group is masked whole, and counted.
"""

from collections import defaultdict
from collections.abc import Sequence


def lone_rows(keys: Sequence[str], min_rollouts: int) -> list[int]:
    """The positions of rows whose group has fewer than `min_rollouts` rollouts in the batch.

    Keys are verl's, `{group}_{rollout}_{trajectory}`; the trajectories of one rollout count once.
    """
    rollouts = defaultdict(set)
    for key in keys:
        rollouts[group_of(key)].add(key.rsplit("_", 1)[0])
    return [row for row, key in enumerate(keys) if len(rollouts[group_of(key)]) < min_rollouts]


def group_of(key: str) -> str:
    """The group of a row."""
    return key.rsplit("_", 2)[0]
