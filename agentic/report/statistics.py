"""Confidence intervals of resolve rates. Pure.

A rate on 128 tasks is known to about ±0.09, so no rate is shown without its interval. Wilson's interval stays within 0
and 1 and is honest at both ends, where the textbook one (rate ± 1.96 standard errors) has no width.
"""

from math import sqrt
from typing import NamedTuple

Z_95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


class Interval(NamedTuple):
    """Lower and upper end."""

    low: float
    high: float


def wilson(resolved: int, graded: int, z: float = Z_95) -> Interval | None:
    """Wilson's score interval of a rate; `None` when nothing was graded."""
    if graded == 0:
        return None
    rate = resolved / graded
    scale = 1 + z * z / graded
    centre = (rate + z * z / (2 * graded)) / scale
    half = z / scale * sqrt(rate * (1 - rate) / graded + z * z / (4 * graded * graded))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def difference(before: tuple[int, int], after: tuple[int, int], z: float = Z_95) -> Interval | None:
    """Newcombe's interval of after - before, each (resolved, graded), as if the two samples were independent.

    Both are in fact the same tasks, which a pairing would use to narrow the interval: this one errs to the safe side.
    """
    first, second = wilson(*before, z), wilson(*after, z)
    if first is None or second is None:
        return None
    rate_before, rate_after = before[0] / before[1], after[0] / after[1]
    gain = rate_after - rate_before
    down = sqrt((rate_after - second.low) ** 2 + (first.high - rate_before) ** 2)
    up = sqrt((second.high - rate_after) ** 2 + (rate_before - first.low) ** 2)
    return Interval(gain - down, gain + up)
