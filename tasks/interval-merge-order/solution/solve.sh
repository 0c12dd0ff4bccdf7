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
    'intervals.py',
    r'''in map(check, intervals):
        if start == end''',
    r'''in sorted(map(check, intervals)):
        if start == end''',
)
replace(
    'intervals.py',
    r'''start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)''',
    r'''start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))''',
)
PY
