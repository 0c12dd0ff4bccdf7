"""What the command line prints: plain lines on standard output, and remarks beside it."""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any


def write(text: str) -> None:
    """As it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


async def write_all(pieces: AsyncIterator[bytes]) -> None:
    """As they are, while they come."""
    async for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def say(line: str) -> None:
    """One line."""
    write(line + "\n")


def note(line: str) -> None:
    """One line beside the output, which may be going into a file."""
    sys.stderr.write(line + "\n")


def say_results(run_dir: Path) -> None:
    """Of a run in this workspace: before and after, as far as it was evaluated, and where report and checkpoint lie."""
    say(f"report      {run_dir / 'report.html'}")
    try:
        evaluation: Mapping[str, Any] = json.loads((run_dir / "evaluation.json").read_text())
    except FileNotFoundError:
        return
    for split, rates in evaluation["splits"].items():
        say(f"{split:<24} resolve rate {_rate(rates['before'])} -> {_rate(rates['after'])}")
    say(f"checkpoint  {run_dir / evaluation['checkpoint']}")


def _rate(tally: Mapping[str, Any]) -> str:
    if tally["rate"] is None:
        return "none graded"
    return f"{tally['rate']:.3f} ({tally['resolved']}/{tally['graded']})"
