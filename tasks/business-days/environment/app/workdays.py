"""Arithmetic with business days."""

from datetime import timedelta

DAY = timedelta(days=1)


def is_workday(day, holidays=frozenset()):
    return day.weekday() < 5 and day not in holidays


def add(day, count, holidays=frozenset()):
    """The business day that lies `count` business days after `day`, or before it when `count` is negative."""
    for _ in range(count):
        day += DAY
        if not is_workday(day, holidays):
            day += DAY
    return day


def between(first, last, holidays=frozenset()):
    """Business days in [first, last)."""
    days = (last - first).days
    return sum(1 for offset in range(days) if is_workday(first + offset * DAY))
