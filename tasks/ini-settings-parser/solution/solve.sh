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
    'reader.py',
    r'''    sections, section = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].partition(";")[0].strip()
        if not line:
            continue
''',
    r'''    sections, section, key = {}, None, None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if raw[0].isspace() and key is not None:
            sections[section][key] += f" {line}"
            continue
''',
)
replace(
    'reader.py',
    r'''            sections.setdefault(section, {})
''',
    r'''            sections.setdefault(section, {})
            key = None
''',
)
replace(
    'reader.py',
    r'''            parts = line.split("=")
            if len(parts) < 2:
                raise ConfigError(f"line {number}: no '=' in {line!r}")
            sections[section][parts[0].strip()] = parts[1].strip()
''',
    r'''            name, separator, value = line.partition("=")
            if not separator:
                raise ConfigError(f"line {number}: no '=' in {line!r}")
            key = name.strip()
            sections[section][key] = value.strip()
''',
)
replace(
    'config.py',
    r'''    resolved = {}
    for section, values in raw.items():
        resolved[section] = {}
        for key, value in values.items():
            resolved[section][key] = REFERENCE.sub(lambda match: _look_up(resolved, match), value)
    return resolved


def _look_up(sections, match):
    section, key = match.groups()
    try:
        return sections[section][key]
    except KeyError:
        raise ConfigError(f"unknown reference {match.group()}") from None
''',
    r'''    return {section: {key: _resolve(raw, section, key, ()) for key in values} for section, values in raw.items()}


def _resolve(sections, section, key, path):
    name = f"{section}.{key}"
    if name in path:
        raise ConfigError(f"circular reference {' -> '.join((*path, name))}")
    try:
        value = sections[section][key]
    except KeyError:
        raise ConfigError(f"unknown reference {name}") from None
    return REFERENCE.sub(lambda match: _resolve(sections, *match.groups(), (*path, name)), value)
''',
)
PY
