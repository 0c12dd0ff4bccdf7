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
    'wrapping.py',
    r'''        if len(line) + len(word) <= width:
            line = f"{line} {word}" if line else word
        else:
            lines.append(line)
            line = word
''',
    r'''        if line and len(line) + 1 + len(word) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        while len(word) > width:
            lines.append(word[:width])
            word = word[width:]
        line = word
''',
)
replace(
    'layout.py',
    r'''wrap(words, width)''',
    r'''wrap(words, width - len(indent))''',
)
replace(
    'layout.py',
    r'''return "\n".join(blocks)''',
    r'''return "\n\n".join(blocks)''',
)
PY
