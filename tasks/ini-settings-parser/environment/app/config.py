"""Settings with references between values."""

import re

from reader import ConfigError, read

REFERENCE = re.compile(r"\$\{([\w-]+)\.([\w-]+)\}")


def load(text):
    """Return section -> key -> value with all references resolved."""
    raw = read(text)
    resolved = {}
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
