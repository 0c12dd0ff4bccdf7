import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.report.statistics import difference, wilson

counts = st.integers(1, 500).flatmap(lambda graded: st.tuples(st.integers(0, graded), st.just(graded)))


@given(counts)
def test_an_interval_holds_its_rate_and_stays_between_zero_and_one(tally: tuple[int, int]) -> None:
    interval = wilson(*tally)
    assert interval is not None
    assert 0 <= interval.low <= tally[0] / tally[1] + 1e-9
    assert tally[0] / tally[1] - 1e-9 <= interval.high <= 1
    assert interval.low < interval.high


def test_wilson_agrees_with_the_published_value() -> None:
    # Newcombe 1998, table I: 81 of 263.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)


def test_difference_agrees_with_the_published_value() -> None:
    # Newcombe 1998, the method without continuity correction: 56/70 - 48/80.
    assert difference((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_nothing_graded_has_no_interval() -> None:
    assert wilson(0, 0) is None
    assert difference((0, 0), (1, 2)) is None


@given(counts, counts)
def test_a_gain_lies_in_its_interval_and_turns_around_with_its_sides(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    gain, loss = difference(before, after), difference(after, before)
    assert gain is not None
    assert loss is not None
    assert gain.low - 1e-9 <= after[0] / after[1] - before[0] / before[1] <= gain.high + 1e-9
    assert (gain.low, gain.high) == pytest.approx((-loss.high, -loss.low))


@given(counts)
def test_more_rollouts_narrow_the_interval(tally: tuple[int, int]) -> None:
    few, many = wilson(*tally), wilson(tally[0] * 4, tally[1] * 4)
    assert few is not None
    assert many is not None
    assert many.high - many.low < few.high - few.low
