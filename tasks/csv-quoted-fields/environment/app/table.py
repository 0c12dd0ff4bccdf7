"""Records as dictionaries."""

from csvtext import CsvError, parse


def load(text):
    """Return one dictionary for each record after the header."""
    records = parse(text)
    if not records:
        return []
    header, *rows = records
    table = []
    for index, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise CsvError(f"record {index} has {len(row)} fields, the header has {len(header)}")
        table.append(dict(zip(header, row)))
    return table


def column(text, name):
    return [row[name] for row in load(text)]
