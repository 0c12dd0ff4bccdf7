"""The shell commands that look at and repair a generated task: what the solution runs and demonstrations show."""

import re

from agentic.tasks.mutation.functions import Hole

LOOK = "cat -n mod.py"


def repair_command(line: int, old: str, new: str) -> str:
    """The `sed` command that puts form `new` where line `line` first has form `old`."""
    return f"sed -i '{line}s|{_escape(old)}|{new}|' mod.py"


def repair_of(hole: Hole) -> str:
    return repair_command(hole.line, hole.form, hole.right)


def numbered(source: str) -> str:
    """What `cat -n` prints, stripped as observations are."""
    return "".join(f"{number:6}\t{line}\n" for number, line in enumerate(source.splitlines(), 1)).strip()


def _escape(form: str) -> str:
    return re.sub(r"([\[\].*^$\\])", r"\\\1", form)
