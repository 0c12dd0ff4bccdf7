"""Every way to read a regular expression: one expression for each choice that it leaves open with `|`.

`a(?:b|c)|d` can be read as `a(?:b)`, `a(?:c)` and `d`. A test that finds each of them somewhere has seen all of the
expression and not only one branch of it. What it does not do: choices in classes (`[ab]`) and by `?` stay as they are.
"""

from collections.abc import Iterator
from itertools import product


def variants(pattern: str) -> list[str]:
    """In the order of the branches."""
    return [one for branch in _branches(pattern) for one in _expand(branch)]


def _branches(pattern: str) -> list[str]:
    """Split at the `|` outside of groups and classes."""
    parts, depth, start = [], 0, 0
    for place, sign in _signs(pattern):
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            parts.append(pattern[start:place])
            start = place + 1
    return [*parts, pattern[start:]]


def _signs(pattern: str) -> Iterator[tuple[int, str]]:
    """Signs that mean something, and where."""
    place, in_class = 0, False
    while place < len(pattern):
        sign = pattern[place]
        if sign == "\\":
            place += 2
            continue
        if not in_class:
            yield place, sign
        in_class = (in_class or sign == "[") and not (in_class and sign == "]")
        place += 1


def _expand(branch: str) -> Iterator[str]:
    """Each group by each of its own variants."""
    pieces: list[list[str]] = []
    depth, start = 0, 0
    for place, sign in _signs(branch):
        if sign == "(":
            if depth == 0:
                pieces.append([branch[start:place]])
                start = place
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                pieces.append(list(_group(branch[start : place + 1])))
                start = place + 1
    pieces.append([branch[start:]])
    yield from map("".join, product(*pieces))


def _group(group: str) -> Iterator[str]:
    head = "(?:" if group.startswith("(?:") else "("
    if group.startswith("(?") and head != "(?:":
        yield group  # looks ahead or behind: no choice of words
        return
    for inner in variants(group[len(head) : -1]):
        yield f"{head}{inner})"
