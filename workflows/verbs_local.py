"""`status`, `logs` and `report` of a run in this workspace; the cluster's are in `verbs_cluster`."""

import json
import os
from pathlib import Path

from workflows.errors import CommandError
from workflows.saying import say, write
from workflows.verbs import workspace


def is_here(run_id: str) -> bool:
    """Whether the workspace has a run of that name."""
    return (workspace() / "runs" / run_id).is_dir()


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
    """Say how far the run has come."""
    folder = run_dir(run_id)
    markers = [json.loads(path.read_text()) for path in (folder / "done").glob("*.json")]
    for marker in sorted(markers, key=lambda marker: float(marker["ended"])):
        say(f"{marker['step']:<16} done in {marker['seconds']:.1f} s")
    finished = {marker["step"] for marker in markers}
    for path in sorted((folder / "progress").glob("*.json"), key=lambda path: path.stat().st_mtime):
        if path.stem not in finished and not path.stem.startswith(tuple(finished)):
            report = json.loads(path.read_text())
            say(f"{path.stem:<16} {report['done']}/{report['total']} {report['message']}")
    return 0


def logs(run_id: str, step: str) -> int:
    """Print what a step has printed."""
    folder = run_dir(run_id)
    found = sorted((folder / "logs").glob(f"{step}*.log"))
    if not found:
        there = ", ".join(sorted(path.stem for path in (folder / "logs").glob("*.log"))) or "none"
        raise CommandError(f"run {run_id} has no log of {step} (there are: {there})")
    for path in found:
        write(path.read_text(errors="replace"))
    return 0


def report(run_id: str) -> int:
    """Write the report anew from what the run's folder holds, and say where it is."""
    from steps.report import ReportInput, run

    run_dir(run_id)
    os.environ["AGENTIC_WORKSPACE"] = str(workspace())
    say(str(workspace() / run(ReportInput(run_id=run_id)).report))
    return 0
