"""Since when troubles have been there, and for how long they may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.cluster.patience import Patience, TroubleClock
from agentic.cluster.troubles import Trouble


def trouble(name: str, *, transient: bool) -> Trouble:
    return Trouble(name, "pod x", "m", "r", transient)


@given(looks=st.lists(st.tuples(st.floats(0.1, 50), st.booleans()), max_size=30), transient=st.booleans())
def test_a_trouble_counts_from_when_it_was_first_seen_unless_it_was_away_for_long(
    looks: list[tuple[float, bool]], transient: bool
) -> None:
    patience = Patience(lasting_seconds=20, passing_seconds=60, absent_seconds=30)
    allowed = patience.passing_seconds if transient else patience.lasting_seconds
    clock, now, since, last = TroubleClock(patience), 0.0, None, None
    for pause, is_there in looks:
        now += pause
        if last is not None and now - last > patience.absent_seconds:
            since = last = None
        found = [trouble("t", transient=transient)] if is_there else []
        is_new = is_there and since is None
        if is_there:
            since, last = now if since is None else since, now
        assert bool(clock.fresh(found, now)) == is_new
        assert (clock.overdue(found, now) is not None) == (is_there and since is not None and now - since >= allowed)


@pytest.mark.parametrize("seconds_of_running", [3.0, 25.0])
def test_a_container_that_ends_again_and_again_is_one_trouble(seconds_of_running: float) -> None:
    """It runs between two ends; each pause of kubelet's is twice as long as the one before."""
    clock, now, said = TroubleClock(Patience(lasting_seconds=60)), 0.0, 0
    loop = [trouble("crash-loop", transient=False)]
    for pause in (10.0, 20.0, 40.0):
        for _ in range(int(pause / 2)):
            now += 2.0
            said += len(clock.fresh(loop, now))
        ended = clock.overdue(loop, now)
        now += seconds_of_running
        clock.fresh([], now)
    assert said == 1
    assert ended is not None


def test_what_stays_without_a_change_is_told_before_what_may_pass() -> None:
    clock = TroubleClock(Patience(lasting_seconds=0, passing_seconds=0, start_seconds=1))
    found = [trouble("passes", transient=True), trouble("stays", transient=False)]
    clock.fresh(found, 1.0)
    overdue = clock.overdue(found, 2.0)
    assert overdue is not None
    assert overdue.name == "stays"
