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
    'lru.py',
    r'''        self.hits += 1
        return''',
    r'''        self.hits += 1
        self._entries.move_to_end(key)
        return''',
)
replace(
    'lru.py',
    r'''        if len(self._entries) >= self.capacity:''',
    r'''        if key not in self._entries and len(self._entries) >= self.capacity:''',
)
PY
