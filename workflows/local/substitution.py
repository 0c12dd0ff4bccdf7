"""Replacing `{{name}}` in the strings of a document; expression tags (`{{=...}}`) are not interpreted."""

import re
from collections.abc import Iterator, Mapping

_TAG = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


class UnresolvedError(Exception):
    """A name without a value, such as an output of a task that did not run."""


def references(text: str) -> Iterator[str]:
    """Every name that the text refers to."""
    for match in _TAG.finditer(text):
        yield match[1]


def substitute(text: str, scope: Mapping[str, str]) -> str:
    """The text with every tag replaced; values are not looked at again."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in scope:
            raise UnresolvedError(match[1])
        return scope[match[1]]

    return _TAG.sub(value, text)


def is_only_reference(text: str) -> bool:
    """Whether the text is one tag and nothing else."""
    return _TAG.fullmatch(text) is not None
