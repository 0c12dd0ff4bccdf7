"""Settings as `KEY=VALUE` words of a command line, for the commands of this room."""

from collections.abc import Iterable
from typing import Any

import yaml

from agentic.rollout.errors import RolloutConfigError


def assign(values: dict[str, Any], words: Iterable[str], example: str) -> None:
    """Put each word's value, read as YAML, to its dotted place. Raises RolloutConfigError in one line."""
    for word in words:
        key, equals, value = word.partition("=")
        path = key.split(".")
        if not equals or not all(path):
            raise RolloutConfigError(f"--set {word}: write KEY=VALUE, such as {example}")
        try:
            _put(values, path, yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise RolloutConfigError(f"--set {word}: the value is no YAML ({' '.join(str(error).split())})") from error
        except TypeError as error:
            raise RolloutConfigError(f"--set {word}: another --set made a part of {key} a plain value") from error


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Raises TypeError where a part of the path is there and holds no settings."""
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise TypeError(part)
    values[path[-1]] = value
