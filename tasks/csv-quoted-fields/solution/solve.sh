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
    'csvtext.py',
    r'''    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            records.append(_split(line, number))
    return records


def _split(line, number):
    fields, field = [], []
    quoted = False
    for character in line:
        if character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            fields.append("".join(field))
            field = []
        else:
            field.append(character)
    if quoted:
        raise CsvError(f"line {number}: a quote is not closed")
    fields.append("".join(field))
    return fields
''',
    r'''    records, pending, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not pending:
            start = number
            if not line.strip():
                continue
        pending = f"{pending}\n{line}" if start != number else line
        if pending.count('"') % 2 == 0:
            records.append(_split(pending))
            pending = ""
    if pending:
        raise CsvError(f"line {start}: a quote is not closed")
    return records


def _split(record):
    fields, field = [], []
    quoted, position = False, 0
    while position < len(record):
        character = record[position]
        if character == '"' and quoted and record[position + 1 : position + 2] == '"':
            field.append('"')
            position += 1
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            fields.append("".join(field))
            field = []
        else:
            field.append(character)
        position += 1
    fields.append("".join(field))
    return fields
''',
)
PY
