"""Which images are needed, and how the work is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.images.plan import Need, plan_images, plan_shards


def test_tasks_with_the_same_environment_share_one_image() -> None:
    pairs = [("t1", "aaa"), ("t2", "bbb"), ("t3", "aaa")]
    assert plan_images(pairs) == [Need("aaa", ("t1", "t3")), Need("bbb", ("t2",))]


@given(st.lists(st.text("abc", min_size=1, max_size=4), unique=True), st.integers(1, 9), st.randoms())
def test_shards_cover_each_task_once_evenly_and_whatever_the_order(
    names: list[str], shards: int, random: object
) -> None:
    parts = plan_shards(names, shards)
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert len(parts) == min(shards, len(names))
    sizes = [len(part) for part in parts]
    assert not sizes or (min(sizes) >= 1 and max(sizes) - min(sizes) <= 1)
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan_shards(shuffled, shards) == parts


def test_no_shard_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan_shards(["a"], 0)
