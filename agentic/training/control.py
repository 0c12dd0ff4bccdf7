"""The control experiment: rewards that say nothing about the rollouts that they are given to. Pure."""

import random
from collections import defaultdict
from collections.abc import Mapping


def permute_within_groups(rewards: Mapping[str, float], shuffle: random.Random) -> dict[str, float]:
    """Give each session the reward of a random session of its group.

    Args:
        rewards: by session, `<group>_<number>`. Each group keeps its rewards as a multiset, hence its mean and standard
            deviation; which rollout had earned which is lost.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for session in rewards:
        groups[session.rpartition("_")[0]].append(session)
    permuted: dict[str, float] = {}
    for sessions in groups.values():
        drawn = [rewards[session] for session in sessions]
        shuffle.shuffle(drawn)
        permuted |= dict(zip(sessions, drawn, strict=True))
    return permuted
