"""What grading did, as a file in the trial's folder: `verifier/grading.json`, beside `diff.patch`."""

import json
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from agentic import files

REPORT = "grading.json"
FAILURE = "failure.json"
"""What kept grading from its end: `exception` and `message`. Harbor keeps a trial's first exception alone, which may be
how its agent ended."""
PATCH = "diff.patch"

NAMED_PATHS = 200
"""Paths that a report names of each kind; the patch has all of them."""


class GradingReport(BaseModel):
    """For people, and for whoever asks why a reward is what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["fresh", "in-place", "separate"]
    """`separate` is Harbor's own: the task names what is taken to a sandbox of its verifier's."""
    reason: str = ""
    """Why it was not fresh; or why nothing was tested."""
    refused: str = ""
    """Why the agent's changes could not be taken; the reward is then 0."""
    timed_out: bool = False
    """Whether the tests were ended for want of time; the reward is then 0."""
    changed: tuple[str, ...] = ()
    """Paths that the tests saw as the agent left them."""
    undone: tuple[str, ...] = ()
    """Paths whose changes were undone, in whole or in part."""
    left_out: tuple[str, ...] = ()
    """What was changed and not taken: links that lead out of the working folder, compiled code, large new files and
    folders."""
    patch_lines: int | None = None
    """Lines added and removed by what the tests saw."""
    tests_seconds: float | None = None
    by_algebra: bool = False
    """Whether an answer that the tests did not take was found right outside of the sandbox."""
    lost: tuple[str, ...] = ()
    """Why earlier fresh sandboxes were lost."""

    def write(self, folder: Path) -> None:
        """Into the verifier's folder of a trial."""
        (folder / REPORT).write_text(self.model_dump_json(indent=1) + "\n")


def read_report(folder: Path) -> GradingReport | None:
    """The report of a trial that was graded."""
    path = folder / REPORT
    return GradingReport.model_validate_json(path.read_bytes()) if path.is_file() else None


class Failure(NamedTuple):
    """See `FAILURE`."""

    exception: str
    message: str


def write_failure(folder: Path, failure: Failure) -> None:
    """Into the verifier's folder of a trial."""
    files.write_json(folder / FAILURE, failure._asdict())


def read_failure(folder: Path) -> Failure | None:
    """Why a trial was not graded, where grading began."""
    path = folder / FAILURE
    return Failure(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
