"""Which groups of a batch can be compared, whatever was lost of them."""

from hypothesis import given
from hypothesis import strategies as st

from agentic.training.groups import group_of, lone_rows

keys = st.sets(st.tuples(st.sampled_from(["a", "b-1", "c_c"]), st.integers(0, 3), st.integers(0, 2)), max_size=16).map(
    lambda rows: [f"{group}_{rollout}_{trajectory}" for group, rollout, trajectory in sorted(rows)]
)


def test_a_rollout_alone_in_its_group_is_found_however_many_trajectories_it_has() -> None:
    assert lone_rows(["a_0_0", "b_2_0", "b_2_1", "b_2_2", "a_1_0"], 2) == [1, 2, 3]


def test_a_single_rollout_is_enough_where_nothing_is_compared() -> None:
    assert lone_rows(["a_0_0", "b_2_0"], 1) == []


@given(keys)
def test_what_is_left_has_two_rollouts_of_each_group_and_nothing_else_is_taken_out(rows: list[str]) -> None:
    lone = set(lone_rows(rows, 2))
    groups = {group_of(row) for row in rows}
    rollouts = {group: {row.rsplit("_", 1)[0] for row in rows if group_of(row) == group} for group in groups}

    assert lone == {place for place, row in enumerate(rows) if len(rollouts[group_of(row)]) < 2}
