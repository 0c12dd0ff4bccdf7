"""What each verb of the command line does. Prints for people; every failure is an AgenticError of one line."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from workflows import pipeline
from workflows.errors import CommandError
from workflows.request import Request
from workflows.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parents[1]
"""The project; steps are imported from here."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def workspace() -> Path:
    """The workspace of local runs."""
    return Path(os.environ.get("AGENTIC_WORKSPACE") or "workspace").absolute()


def _load(request: Request) -> Settings:
    if request.words:
        raise CommandError(f"'{request.words[0]}' is no setting: write section.key=value, such as train.steps=4")
    return load_settings(request.profile_name, request.settings, os.environ)


def _compile(request: Request, run_id: str) -> tuple[Settings, dict[str, Any]]:
    settings = _load(request)
    start_from = request.start_from or pipeline.STEPS[0]
    if start_from not in pipeline.STEPS:
        raise CommandError(f"there is no step {start_from} to start from: use {', '.join(pipeline.STEPS)}")
    return settings, pipeline.build_workflow(settings, request.profile_name, run_id, start_from)


def render(request: Request) -> int:
    """Print the compiled Workflow."""
    _, document = _compile(request, request.make_run_id())
    sys.stdout.write(yaml.safe_dump(document, sort_keys=False, width=120))
    return 0


def submit(request: Request) -> int:
    """Create the Workflow in the cluster."""
    from workflows.submission import create

    run_id = request.make_run_id()
    settings, document = _compile(request, run_id)
    name = create(document)
    namespace = settings.cluster.namespace
    _say(f"workflow {name} is created in namespace {namespace}: argo watch {name} -n {namespace}")
    return 0


def run_local(request: Request) -> int:
    """Interpret the Workflow on this machine."""
    from workflows.local.run import INTERRUPTED, run_locally

    run_id = request.make_run_id()
    settings, document = _compile(request, run_id)
    run_dir = workspace() / "runs" / run_id
    _say_what_changes(run_dir, settings, request)
    _say(f"run {run_id} in {workspace()}")
    code = run_locally(document, run_id, workspace(), ROOT, Console(highlight=False))
    if code == 0:
        _say_results(run_dir)
    else:
        word = "interrupted" if code == INTERRUPTED else "failed"
        _say(f"run {run_id} {word}; to go on: {request.command(run_id, os.environ)}")
    return code


def _say_what_changes(run_dir: Path, settings: Settings, request: Request) -> None:
    """Going on with other settings is allowed: the steps whose inputs differ are done anew."""
    try:
        before: Mapping[str, Any] = json.loads((run_dir / "settings.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return
    now = settings.model_dump(mode="json")
    changed = [name for name in pipeline.SECTIONS if before.get(name) != now[name]]
    if changed:
        _say(f"run {run_dir.name} had other settings ({', '.join(changed)}): the steps that read them are done anew")


def _say_results(run_dir: Path) -> None:
    """Before and after, and where the report and the checkpoint lie."""
    evaluation: Mapping[str, Any] = json.loads((run_dir / "evaluation.json").read_text())
    for split, rates in evaluation["splits"].items():
        _say(f"{split:<24} resolve rate {_rate(rates['before'])} -> {_rate(rates['after'])}")
    _say(f"report      {run_dir / 'report.html'}")
    _say(f"checkpoint  {run_dir / evaluation['checkpoint']}")


def _rate(tally: Mapping[str, Any]) -> str:
    if tally["rate"] is None:
        return "none graded"
    return f"{tally['rate']:.3f} ({tally['resolved']}/{tally['graded']})"


def plan(request: Request) -> int:
    """Say what a run would do; starts and downloads nothing."""
    from workflows.planning import describe

    run_id = request.make_run_id()
    settings, document = _compile(request, run_id)
    for line in describe(settings, document, workspace()):
        _say(line)
    return 0


def status(request: Request) -> int:
    """Say how far a local run has come."""
    run_dir = _run_dir(request)
    markers = [json.loads(path.read_text()) for path in (run_dir / "done").glob("*.json")]
    for marker in sorted(markers, key=lambda marker: float(marker["ended"])):
        _say(f"{marker['step']:<16} done in {marker['seconds']:.1f} s")
    finished = {marker["step"] for marker in markers}
    for path in sorted((run_dir / "progress").glob("*.json"), key=lambda path: path.stat().st_mtime):
        if path.stem not in finished and not path.stem.startswith(tuple(finished)):
            report = json.loads(path.read_text())
            _say(f"{path.stem:<16} {report['done']}/{report['total']} {report['message']}")
    return 0


def logs(request: Request) -> int:
    """Print what a step of a local run has printed."""
    if len(request.words) != 2:
        raise CommandError("name the run and the step: python3 workflows/submit.py logs RUN STEP")
    run_dir = _run_dir(request)
    found = sorted((run_dir / "logs").glob(f"{request.words[1]}*.log"))
    if not found:
        there = ", ".join(sorted(path.stem for path in (run_dir / "logs").glob("*.log"))) or "none"
        raise CommandError(f"run {run_dir.name} has no log of {request.words[1]} (there are: {there})")
    for path in found:
        sys.stdout.write(path.read_text(errors="replace"))
    return 0


def _run_dir(request: Request) -> Path:
    if not request.words:
        raise CommandError(f"name a run: python3 workflows/submit.py {request.verb} RUN")
    run_dir = workspace() / "runs" / request.words[0]
    if not run_dir.is_dir():
        there = ", ".join(sorted(path.name for path in run_dir.parent.glob("*"))) or "none"
        raise CommandError(f"there is no run {request.words[0]} in {workspace()} (there are: {there})")
    return run_dir
