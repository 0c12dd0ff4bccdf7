"""Leases end late enough, are renewed early enough, and dead owners are told from living ones."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from agentic.sandbox.kube.leases import (
    deadline_seconds,
    is_owner_dead,
    parse_time,
    rfc3339,
    take_lease,
)

times = st.floats(1_000_000_000, 3_000_000_000)
lengths = st.floats(60, 100_000)


@given(times, lengths, st.lists(st.floats(0, 1000), max_size=30))
def test_a_lease_that_is_renewed_when_due_never_runs_out_and_never_gets_shorter(
    start: float, seconds: float, waits: list[float]
) -> None:
    lease, now = take_lease(seconds, start), start
    for wait in waits:
        now += min(wait, seconds / 2)
        assert lease.expires >= now
        before = lease
        if lease.is_due(now):
            lease = lease.renewed(now)
        assert lease.expires >= before.expires


@given(times, st.floats(0, 1_000_000), st.integers(60, 100_000))
def test_a_jobs_deadline_leaves_the_whole_lease_from_now(started: float, age: float, seconds: int) -> None:
    now = started + age
    assert started + deadline_seconds(started, now, seconds) >= now + seconds - 1


def test_a_clock_that_runs_behind_never_shortens_a_lease() -> None:
    assert deadline_seconds(started=1000.0, now=900.0, lease_seconds=60) == 60


@given(times, st.floats(1, 1000))
def test_an_owner_that_renews_on_time_is_alive_and_one_that_stopped_is_dead(now: float, every: float) -> None:
    missed = itertools.count()
    assert not is_owner_dead(now - every * 2.5, every, now)
    assert is_owner_dead(now - every * (4 + next(missed)), every, now)
    assert is_owner_dead(None, every, now)


@given(times)
def test_times_survive_the_api_servers_notation_and_are_never_earlier(now: float) -> None:
    parsed = parse_time(rfc3339(now))
    assert parsed is not None
    assert now <= parsed < now + 1.001


def test_what_is_no_time_is_none() -> None:
    assert [parse_time(text) for text in (None, "", "soon")] == [None, None, None]
