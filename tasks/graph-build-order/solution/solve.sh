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
    'graph.py',
    r'''    return sorted(needs)
''',
    r'''    return sorted(set(needs).union(*needs.values()))
''',
)
replace(
    'graph.py',
    r'''    if node in path:
        raise''',
    r'''    if node in done:
        return
    if node in path:
        raise''',
)
replace(
    'graph.py',
    r'''        _visit(need, needs, path, done)
    done''',
    r'''        _visit(need, needs, path, done)
    path.pop()
    done''',
)
PY
