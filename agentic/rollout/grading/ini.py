"""What the readers of `setup.cfg` make of its test sections. Pure.

pytest and configparser, which all others use, cut a text into lines and sections each in its own way: other line ends
than a newline, a byte order mark and indented headers are read by one of them at least. Two texts say the same of tests
only when they do for both.
"""

import configparser
import io
from collections.abc import Callable

BYTE_ORDER_MARK = "\ufeff"

type Said = tuple[object, object]
"""By pytest and by configparser."""


def sections_of_tests(text: str, is_of_tests: Callable[[str], bool]) -> Said | None:
    """What either reads there; None when configparser reads nothing."""
    lines = io.StringIO(text.removeprefix(BYTE_ORDER_MARK), newline=None).read()
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(lines)
    except configparser.Error:
        return None
    others = {name: parser.items(name) for name in parser.sections() if is_of_tests(name.strip())}
    if parser.defaults():
        others[parser.default_section] = list(parser.defaults().items())
    return _as_pytest(lines, is_of_tests), others


def _as_pytest(text: str, is_of_tests: Callable[[str], bool]) -> list[list[str]]:
    """The lines of each test section, its header first."""
    found: list[list[str]] = []
    is_within = False
    for line in (line.rstrip() for line in text.splitlines()):
        if line.startswith("["):
            header = line.partition("#")[0].partition(";")[0].rstrip()
            is_within = is_of_tests(header[1:-1].strip())
            found += [[header]] if is_within else []
        elif is_within and line:
            found[-1].append(line)
    return found
