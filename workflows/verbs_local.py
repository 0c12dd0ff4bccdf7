"""`status`, `logs` and `report` of a run in this workspace; the cluster's are in `verbs_cluster`."""

import os
import time
from pathlib import Path

from steps.markers import read_markers
from workflows.argo.nodes import is_part
from workflows.display import read_progress
from workflows.errors import CommandError
from workflows.local.run import holder
from workflows.pipeline import FAN_OUT
from workflows.request import Request
from workflows.saying import say, write
from workflows.verbs import workspace

LOOK_SECONDS = 0.5
"""Between two looks at a log that is followed."""


def is_here(run_id: str) -> bool:
    """Whether the workspace has a run of that name."""
    return (workspace() / "runs" / run_id).is_dir()


def is_meant(request: Request, run_id: str) -> bool:
    """Whether a verb is about this workspace's run of that name and not about one on a cluster."""
    return request.target not in (None, "argo") or (request.target is None and is_here(run_id))


def newest_run() -> str | None:
    """The run of the workspace that was begun last."""
    runs = [path for path in (workspace() / "runs").glob("*") if path.is_dir()]
    return max(runs, key=lambda path: path.stat().st_mtime).name if runs else None


def run_dir(run_id: str) -> Path:
    """The run's folder.

    Raises:
        CommandError: there is none.
    """
    folder = workspace() / "runs" / run_id
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in folder.parent.glob("*"))) or "none"
        raise CommandError(f"there is no run {run_id} in {workspace()} (there are: {there})")
    return folder


def status(run_id: str) -> int:
    """Say how far the run has come, and whether it goes on."""
    folder = run_dir(run_id)
    markers = read_markers(folder)
    for marker in markers:
        say(f"{marker['step']:<16} done in {marker['seconds']:.1f} s")
    finished = {marker["step"] for marker in markers}
    for path in sorted((folder / "progress").glob("*.json"), key=lambda path: path.stat().st_mtime):
        step = path.stem.rpartition("-")[0] if path.stem.startswith(f"{FAN_OUT}-") else path.stem
        progress = read_progress(path)
        if step not in finished and progress is not None:
            say(f"{path.stem:<16} {progress.done}/{progress.total} {progress.message}".rstrip())
    process = holder(folder)
    say(f"run {run_id} is being executed by process {process}" if process else f"run {run_id} is not going on")
    return 0


def logs(run_id: str, step: str, *, follow: bool = False) -> int:
    """Print what a step has printed, all parts of a fan-out; `follow` goes on while the run does."""
    folder = run_dir(run_id)
    while not _logs_of(folder, step) and follow and holder(folder):
        time.sleep(LOOK_SECONDS)
    if not _logs_of(folder, step):
        there = ", ".join(sorted(path.stem for path in (folder / "logs").glob("*.log"))) or "none"
        raise CommandError(f"run {run_id} has no log of {step} (there are: {there})")
    printed: dict[Path, int] = {}
    while True:
        goes_on = follow and holder(folder) is not None
        for path in _logs_of(folder, step):
            printed[path] = _print_from(path, printed.get(path, 0))
        if not goes_on:
            return 0
        time.sleep(LOOK_SECONDS)


def _logs_of(folder: Path, step: str) -> list[Path]:
    """The step's own, then its parts by number."""
    found = [path for path in (folder / "logs").glob(f"{step}*.log") if path.stem == step or is_part(path.stem, step)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _print_from(path: Path, offset: int) -> int:
    """What stands behind the offset; the new offset."""
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    write(content.decode(errors="replace"))
    return offset + len(content)


def report(run_id: str) -> int:
    """Write the report anew from what the run's folder holds, and say where it is."""
    from steps.report import ReportInput, run

    run_dir(run_id)
    os.environ["AGENTIC_WORKSPACE"] = str(workspace())
    say(str(workspace() / run(ReportInput(run_id=run_id)).report))
    return 0
