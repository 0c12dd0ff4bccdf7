"""Lines of settings into sections of raw values."""


class ConfigError(ValueError):
    """What is wrong, with the line or the reference."""


def read(text):
    """Return section -> key -> raw value."""
    sections, section = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].partition(";")[0].strip()
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            sections.setdefault(section, {})
        elif section is None:
            raise ConfigError(f"line {number}: a value before any section")
        else:
            parts = line.split("=")
            if len(parts) < 2:
                raise ConfigError(f"line {number}: no '=' in {line!r}")
            sections[section][parts[0].strip()] = parts[1].strip()
    return sections
