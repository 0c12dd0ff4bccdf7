#!/bin/sh
set -e
cd "${APP:-/app}"
python3 - <<'PY'
from pathlib import Path


def replace(name, old, new):
    path = Path(name)
    text = path.read_text()
    assert text.count(old) == 1, name
    path.write_text(text.replace(old, new))


replace(
    'workdays.py',
    r'''    for _ in range(count):
        day += DAY
        if not is_workday(day, holidays):
            day += DAY
    return day''',
    r'''    step = DAY if count >= 0 else -DAY
    while count == 0 and not is_workday(day, holidays):
        day += step
    for _ in range(abs(count)):
        day += step
        while not is_workday(day, holidays):
            day += step
    return day''',
)
replace(
    'workdays.py',
    r'''    days = (last - first).days
    return sum(1 for offset in range(days) if is_workday(first + offset * DAY))''',
    r'''    if last < first:
        return -between(last, first, holidays)
    days = (last - first).days
    return sum(1 for offset in range(days) if is_workday(first + offset * DAY, holidays))''',
)
PY
