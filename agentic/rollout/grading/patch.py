"""Changes for people, and how large they are: a unified diff with git's headers. Pure.

What is compared comes from the agent, so that no content may cost much: equal beginnings and ends are cut off first,
and what is left is compared by lines only when it is short, and as long as all comparisons together are few.
"""

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentic.rollout.grading.changes import Change
from agentic.rollout.grading.tree import Kind, Node

PATCH_BYTES = 1024 * 1024
"""What is kept of a patch."""

COMPARED_LINES = 2000
"""The longest part, old and new together, that is compared line by line; a longer one counts as replaced whole."""

COMPARED_PAIRS = 2_000_000
"""Pairs of an old and a new line that are compared in all; later parts count as replaced whole. At the worst this takes
about a second."""

CONTEXT_LINES = 3
_HUNK = re.compile(r"^@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@$")
_PREFIXES = {Kind.FILE: "100", Kind.LINK: "120", Kind.FOLDER: "040"}


@dataclass(frozen=True, slots=True)
class Patch:
    """A diff and its size."""

    text: str
    added_lines: int
    removed_lines: int

    @property
    def changed_lines(self) -> int:
        """Added and removed together: a changed line counts twice, as in `git diff --numstat`."""
        return self.added_lines + self.removed_lines


def make_patch(changes: Sequence[Change]) -> Patch:
    """The diff of all changes. Every file counts by the lines of its bytes, in whatever encoding; an empty file or
    folder, a link, or a change of permissions alone counts as one added line."""
    pieces: list[str] = []
    added = removed = size = 0
    budget = _Budget()
    for change in changes:
        if change.new is None and change.old is not None and change.old.kind is Kind.FOLDER:
            continue  # What was in it says so.
        body, plus, minus = _body(change, budget)
        added, removed = added + max(plus, int(not minus)), removed + minus
        text = _head(change) + body
        size += len(text)
        if size <= PATCH_BYTES:
            pieces.append(text)
    if size > PATCH_BYTES:
        pieces.append(f"# {size} characters in all: the rest is left out\n")
    return Patch("".join(pieces), added, removed)


def _name(change: Change) -> str:
    readable = change.path.encode(errors="surrogateescape").decode(errors="replace")
    return readable.replace("\n", "\\n")


def _head(change: Change) -> str:
    lines = [f"diff --git a/{_name(change)} b/{_name(change)}"]
    match change.old, change.new:
        case None, Node() as new:
            lines.append(f"new file mode {_mode(new)}")
        case Node() as old, None:
            lines.append(f"deleted file mode {_mode(old)}")
        case Node() as old, Node() as new if _mode(old) != _mode(new):
            lines += [f"old mode {_mode(old)}", f"new mode {_mode(new)}"]
    return "\n".join(lines) + "\n"


def _mode(node: Node) -> str:
    return _PREFIXES[node.kind] + ("000" if node.kind is Kind.LINK else f"{node.mode:03o}")


class _Budget:
    """What comparisons may still cost."""

    def __init__(self) -> None:
        self._pairs = COMPARED_PAIRS

    def allows(self, removed: int, added: int) -> bool:
        """Whether so many lines may be compared with each other; then it is spent."""
        if removed + added > COMPARED_LINES or removed * added > self._pairs:
            return False
        self._pairs -= removed * added
        return True


def _body(change: Change, budget: _Budget) -> tuple[str, int, int]:
    """The hunks, and the lines that they add and remove."""
    old, new = _text(change.old), _text(change.new)
    if old == new:
        return "", 0, 0
    hunks, added, removed = _hunks(_lines(old), _lines(new), budget)
    if "\0" in old or "\0" in new:
        return f"Binary files a/{_name(change)} and b/{_name(change)} differ\n", added, removed
    before = "/dev/null" if change.old is None else f"a/{_name(change)}"
    after = "/dev/null" if change.new is None else f"b/{_name(change)}"
    return f"--- {before}\n+++ {after}\n{hunks}", added, removed


def _hunks(old: list[str], new: list[str], budget: _Budget) -> tuple[str, int, int]:
    head = _equal(old, new)
    tail = min(_equal(old[::-1], new[::-1]), min(len(old), len(new)) - head)
    removed, added = len(old) - head - tail, len(new) - head - tail
    if not budget.allows(removed, added):
        return f"@@ {removed} lines from line {head + 1} on are replaced by {added} @@\n", added, removed
    start, kept = max(0, head - CONTEXT_LINES), max(0, tail - CONTEXT_LINES)
    diff = list(difflib.unified_diff(old[start : len(old) - kept], new[start : len(new) - kept], n=CONTEXT_LINES))[2:]
    added, removed = (sum(line[0] == sign for line in diff) for sign in "+-")
    return "".join(_shown(line, start) for line in diff), added, removed


def _equal(one: list[str], other: list[str]) -> int:
    """How many lines are equal from the beginning on."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _shown(line: str, offset: int) -> str:
    if found := _HUNK.match(line.rstrip("\n")):
        old, old_count, new, new_count = found.groups(default="")
        return f"@@ -{int(old) + offset}{old_count} +{int(new) + offset}{new_count} @@\n"
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Cut at newlines alone: `splitlines` would cut at characters that are part of a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def _text(node: Node | None) -> str:
    """What is no UTF-8 stays in it as single code points, so that nothing is lost and every line counts."""
    return "" if node is None or node.kind is Kind.FOLDER else node.content.decode(errors="surrogateescape")
