"""What the verbs that make a run do. Prints for people; every failure is an AgenticError of one line."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from workflows import pipeline
from workflows.errors import CommandError
from workflows.request import Request
from workflows.saying import say, say_results, write
from workflows.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parents[1]
"""The project; steps are imported from here."""


def workspace() -> Path:
    """The workspace of local runs."""
    return Path(os.environ.get("AGENTIC_WORKSPACE") or "workspace").absolute()


def load(request: Request) -> Settings:
    """The settings that a command line describes; runs and steps that it names are no part of them."""
    return load_settings(request.profile_name, request.settings, os.environ)


def compile_workflow(request: Request, run_id: str) -> tuple[Settings, dict[str, Any]]:
    """The settings and the Workflow of a new run, or of one that goes on."""
    if request.words:
        raise CommandError(f"'{request.words[0]}' is no setting: write section.key=value, such as train.steps=4")
    settings = load(request)
    start_from = request.start_from or pipeline.STEPS[0]
    if start_from not in pipeline.STEPS:
        raise CommandError(f"there is no step {start_from} to start from: use {', '.join(pipeline.STEPS)}")
    return settings, pipeline.build_workflow(settings, request.profile_name, run_id, start_from)


def render(request: Request) -> int:
    """Print the compiled Workflow, or write all of a run's objects for people who apply by hand."""
    run_id = request.make_run_id()
    settings, document = compile_workflow(request, run_id)
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    if request.objects is None:
        write(text)
        return 0
    from workflows.objects import write_objects

    folder = Path(request.objects)
    written = [*write_objects(settings, run_id, folder), folder / "workflow.yaml"]
    written[-1].write_text(text)
    for path in written:
        say(str(path))
    return 0


def submit(request: Request) -> int:
    """Create the Workflow in the cluster, after what it needs there."""
    run_id = request.make_run_id()
    settings, document = compile_workflow(request, run_id)
    from workflows.verbs_cluster import create_and_say

    return asyncio.run(create_and_say(request, settings, document, run_id))


def run_local(request: Request) -> int:
    """Interpret the Workflow on this machine."""
    from workflows.local.run import INTERRUPTED, run_locally

    run_id = request.make_run_id()
    settings, document = compile_workflow(request, run_id)
    run_dir = workspace() / "runs" / run_id
    _say_what_changes(run_dir, settings)
    say(f"run {run_id} in {workspace()}")
    code = run_locally(document, run_id, workspace(), ROOT, Console(highlight=False))
    if code == 0:
        say_results(run_dir)
    else:
        word = "interrupted" if code == INTERRUPTED else "failed"
        say(f"run {run_id} {word}; to go on: {request.command(run_id, os.environ)}")
    return code


def _say_what_changes(run_dir: Path, settings: Settings) -> None:
    """Going on with other settings is allowed: the steps whose inputs differ are done anew."""
    try:
        before = json.loads((run_dir / "settings.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # without settings to compare with, nothing is said
        return
    if not isinstance(before, dict):
        return
    now = settings.model_dump(mode="json")
    changed = [name for name in pipeline.SECTIONS if name in before and before[name] != now[name]]
    if changed:
        say(f"run {run_dir.name} had other settings ({', '.join(changed)}): the steps that read them are done anew")


def plan(request: Request) -> int:
    """Say what a run would do, and what is there already, here and in the cluster; starts and downloads nothing."""
    from workflows.argo.inventory import describe_cluster
    from workflows.planning import describe, describe_here

    run_id = request.make_run_id()
    settings, document = compile_workflow(request, run_id)
    if request.target == "local":
        for line in describe_here(settings, document, workspace()):
            say(line)
        return 0
    for line in describe(settings, document, workspace()):
        say(line)
    for line in asyncio.run(describe_cluster(settings.cluster, run_id, os.environ)):
        say(line)
    return 0
