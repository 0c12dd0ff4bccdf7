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
    'paths.py',
    r'''        elif part:
            parts.append(part)
    return "/" + "/".join(parts)
''',
    r'''        elif part and part != ".":
            parts.append(part)
    folder = path.rpartition("/")[2] in ("", ".", "..") and parts
    return "/" + "/".join(parts) + ("/" if folder else "")
''',
)
replace(
    'router.py',
    r'''    return normalize(parent(base) + target)''',
    r'''    if target.startswith("/"):
        return normalize(target)
    return normalize(parent(base) + target)''',
)
PY
