"""The text of a grader as it goes into a task: one file that runs alone, with what it shares with others put in."""

from importlib.resources import files

from agentic.tasks.errors import DataError

SHARED = "from agentic.tasks.descendants import end_descendants, guard_process\n"
"""The line of a grader in whose place the text comes."""

_BEGIN = "\n\ndef guard_process()"


def packed(grader: str) -> bytes:
    """A module of `agentic/tasks`, by its path there. Raises DataError when it has not that line."""
    folder = files("agentic.tasks")
    before, line, after = folder.joinpath(grader).read_text(encoding="utf-8").partition(SHARED)
    if not line:
        raise DataError(f"agentic/tasks/{grader} has no line {SHARED.strip()!r}: put it among its imports")
    shared = folder.joinpath("descendants.py").read_text(encoding="utf-8")
    return (before.rstrip("\n") + "\n" + shared[shared.index(_BEGIN) :] + "\n\n" + after.lstrip("\n")).encode()
