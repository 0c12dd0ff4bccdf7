"""`render`, `submit` and `plan` for launchers: Slurm's batch script and SkyPilot's task, from the same settings.

What is submitted is kept in the run's folder, so that a person can read what was asked for. A launcher that is not
installed is one line that says how to go on without it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from agentic import files
from workflows.errors import CommandError, LauncherError
from workflows.planning import describe_steps, describe_work
from workflows.request import Request
from workflows.saying import say, write
from workflows.settings import Settings
from workflows.targets import skypilot, slurm
from workflows.targets.launch import Launch
from workflows.verbs import ROOT, compile_workflow, workspace

SKYPILOT_WORKSPACE = PurePosixPath("/workspace")
"""Where a volume is mounted on SkyPilot's nodes."""


def render(request: Request) -> int:
    """Print what the launcher is given."""
    if request.objects is not None:
        raise CommandError(f"--objects is for a cluster's objects, which --target {request.target} has none of")
    settings, _, launch = _read(request)
    write(_text(request, settings, launch))
    return 0


def plan(request: Request) -> int:
    """Say what would run, how large, and what the launcher is asked for; starts nothing."""
    settings, document, launch = _read(request)
    (slurm if request.target == "slurm" else skypilot).check(settings)
    say(f"target      {request.target}, run {launch.run_id}")
    for line in describe_work(settings, workspace()):
        say(line)
    for line in _asked(request, settings):
        say(line)
    for line in describe_steps(settings, document):
        say(line)
    return 0


def submit(request: Request) -> int:
    """Hand it to the launcher."""
    if request.follow:
        raise CommandError(
            f"--watch is no business of --target {request.target}: follow it by the launcher's own commands"
        )
    settings, _, launch = _read(request)
    text = _text(request, settings, launch)
    program = "sbatch" if request.target == "slurm" else "sky"
    if shutil.which(program) is None:
        raise LauncherError(
            f"{program} is not installed on this machine, and --target {request.target} needs it: write the file with "
            f"python3 workflows/submit.py render --target {request.target}, and submit it where {program} is"
        )
    folder = workspace() / "runs" / launch.run_id
    folder.mkdir(parents=True, exist_ok=True)
    if request.target == "slurm":
        script = folder / "job.sbatch"
        files.write_text(script, text)
        return _sbatch(script, launch)
    task = folder / f"{settings.skypilot.name}.yaml"
    files.write_text(task, text)
    return _sky(settings, task)


def _read(request: Request) -> tuple[Settings, dict[str, Any], Launch]:
    run_id = request.make_run_id()
    settings, document = compile_workflow(request, run_id)
    is_slurm = request.target == "slurm"
    launch = Launch(
        run_id=run_id,
        profile=request.profile_name,
        arguments=request.settings,
        variables=tuple(request.variables(os.environ).items()),
        start_from=request.start_from,
        project=PurePosixPath(ROOT),
        workspace=PurePosixPath(workspace()) if is_slurm else SKYPILOT_WORKSPACE,
    )
    return settings, document, launch


def _text(request: Request, settings: Settings, launch: Launch) -> str:
    if request.target == "slurm":
        return slurm.render(settings, launch)
    return skypilot.to_yaml(skypilot.render(settings, launch))


def _asked(request: Request, settings: Settings) -> Iterator[str]:
    train, job, sky = settings.train, settings.slurm, settings.skypilot
    gpus = f"{train.gpus_per_node} GPUs" if train.device == "cuda" else "no GPU"
    if request.target == "slurm":
        share = f"{job.cpus_per_node} CPUs and {job.memory}"
        yield f"job         {train.nodes} nodes of {gpus}, {share}, {job.time_limit} for each start"
        yield f"queue       partition {job.partition or 'default'}, account {job.account or 'default'}"
        yield f"image       {job.image or 'none'}"
        yield f"network     {job.interface or 'the address of the host name'}, Ray's head on port {job.ray_port}"
    else:
        kind = f" {sky.accelerator}" if train.device == "cuda" else ""
        yield f"task        {sky.name}: {train.nodes} nodes of {gpus}{kind} and {sky.memory} GiB on {sky.infra}"
        yield f"image       {sky.image or 'of SkyPilot'}, workspace {sky.volume or 'on the node'}"
        yield f"secrets     {', '.join(sky.secrets) or 'none'}; dashboard exposed on port {sky.dashboard_port}"


def _sbatch(script: Path, launch: Launch) -> int:
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LauncherError(f"sbatch refuses the job: {' '.join(done.stderr.split())}")
    job = done.stdout.strip().partition(";")[0]
    say(f"job {job} is submitted for run {launch.run_id}: squeue --jobs {job}, tail -f slurm-{job}.out")
    return 0


def _sky(settings: Settings, task: Path) -> int:
    name, secrets = settings.skypilot.name, settings.skypilot.secrets
    missing = [secret for secret in secrets if not os.environ.get(secret)]
    if missing:
        raise CommandError(
            f"the environment has no {', '.join(missing)}: export what skypilot.secrets names, or shorten it"
        )
    words = [
        "sky",
        "launch",
        "-c",
        name,
        str(task),
        *(word for secret in secrets for word in ("--secret", secret)),
        "-y",
    ]
    return subprocess.run(words, cwd=ROOT, check=False).returncode
