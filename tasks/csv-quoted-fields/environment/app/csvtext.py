"""Splits comma-separated text into records of fields."""


class CsvError(ValueError):
    """The text is not well formed; the message names the line."""


def parse(text):
    """Return the records; blank lines between records are skipped."""
    records = []
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
