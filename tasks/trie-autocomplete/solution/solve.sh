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
    'trie.py',
    r'''        for node, letter in zip(reversed(path[:-1]), reversed(word)):
            del node.children[letter]
''',
    r'''        path[-1].count = 0
        for node, letter in zip(reversed(path[:-1]), reversed(word)):
            child = node.children[letter]
            if child.children or child.count:
                return
            del node.children[letter]
''',
)
replace(
    'trie.py',
    r'''        if not node.children:
            yield''',
    r'''        if node.count:
            yield''',
)
replace(
    'search.py',
    r'''words(typed)
        found.sort(key=lambda entry: entry[1])''',
    r'''words(typed.strip().lower())
        found.sort(key=lambda entry: -entry[1])''',
)
PY
