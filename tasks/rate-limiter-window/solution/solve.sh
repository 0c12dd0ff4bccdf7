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
    'limiter.py',
    r'''        calls.append(now)
        return len(calls) <= self.limit''',
    r'''        if len(calls) >= self.limit:
            return False
        calls.append(now)
        return True''',
)
replace(
    'limiter.py',
    r'''return calls[-1] + self''',
    r'''return calls[0] + self''',
)
replace(
    'limiter.py',
    r'''now - calls[0] > self''',
    r'''now - calls[0] >= self''',
)
PY
