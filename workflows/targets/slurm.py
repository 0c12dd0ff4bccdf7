"""The batch script of a Slurm job, rendered from the settings. Pure.

The script is a head of directives and assignments, which is all that differs from run to run, and a body that never
does (`sbatch_body.sh`), so that what a cluster's administrators read, and what shellcheck checks, is plain bash.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from workflows.settings import Settings
from workflows.targets.launch import Launch, check_sandboxes, payload
from workflows.targets.settings import SlurmSettings

BODY = Path(__file__).with_name("sbatch_body.sh")


def render(settings: Settings, launch: Launch) -> str:
    """The whole script.

    Raises:
        CommandError: settings that need Kubernetes.
    """
    check(settings)
    directives = "".join(f"#SBATCH {line}\n" for line in _directives(settings, launch))
    assignments = "".join(f"{line}\n" for line in _assignments(settings, launch))
    return f"#!/usr/bin/env bash\n{directives}\n{assignments}\n{BODY.read_text()}"


def check(settings: Settings) -> None:
    """Refuse what a Slurm cluster cannot run.

    Raises:
        CommandError: settings that need Kubernetes.
    """
    check_sandboxes(settings, "slurm")


def _directives(settings: Settings, launch: Launch) -> Iterator[str]:
    slurm, train = settings.slurm, settings.train
    yield f"--job-name=agentic-rl-{launch.run_id}"
    yield f"--nodes={train.nodes}"
    yield "--ntasks-per-node=1"
    if train.device == "cuda":
        yield f"--gpus-per-node={train.gpus_per_node}"
    yield f"--cpus-per-task={slurm.cpus_per_node}"
    yield f"--mem={slurm.memory}"
    yield f"--time={slurm.time_limit}"
    yield "--output=slurm-%j.out"
    yield "--open-mode=append"
    yield "--requeue" if slurm.requeue else "--no-requeue"
    yield f"--signal=B:USR1@{slurm.warning_seconds}"
    if slurm.partition:
        yield f"--partition={slurm.partition}"
    if slurm.account:
        yield f"--account={slurm.account}"
    yield from slurm.options


def _assignments(settings: Settings, launch: Launch) -> Iterator[str]:
    slurm, train, python = settings.slurm, settings.train, python_of(settings.slurm, launch)
    yield from (f"{name}={shlex.quote(str(value))}" for name, value in _values(settings, launch).items())
    # A cluster's users know the variable, and may choose anew at each submission.
    yield f"INTERFACE=${{RAY_NETWORK_INTERFACE:-{slurm.interface or ''}}}"
    yield _array("DATA_INTERFACES", slurm.data_interfaces)
    yield _array("IN_IMAGE", _in_image(slurm, launch, is_gpu=train.device == "cuda"))
    yield _array("PYTHON", [python])
    yield _array("PAYLOAD", payload(slurm.command, python, launch))
    yield "prepare_node() {"
    yield from (f"    {line}" for line in (*slurm.setup, ":"))
    yield "}"


def _values(settings: Settings, launch: Launch) -> dict[str, str | int | float]:
    slurm = settings.slurm
    return {
        "RUN_ID": launch.run_id,
        "PROJECT": str(launch.project),
        "WORKSPACE": str(launch.workspace),
        "LOG_NAME": slurm.log,
        "RAY_PORT": slurm.ray_port,
        "DASHBOARD_PORT": slurm.dashboard_port or "",
        "RAY_CPUS": max(settings.ray.cpus, slurm.cpus_per_node),
        "RAY_GPUS": settings.train.gpus_per_node,
        "OBJECT_STORE_BYTES": settings.ray.object_store_bytes,
        "WORKER_PAUSE_SECONDS": slurm.worker_pause_seconds,
        "JOIN_POLLS": slurm.join.polls,
        "JOIN_POLL_SECONDS": slurm.join.poll_seconds,
        "RESTARTS": slurm.restarts if slurm.requeue else 0,
    }


def python_of(slurm: SlurmSettings, launch: Launch) -> str:
    """The Python that has the training stack on the nodes."""
    return slurm.python or ("python3" if slurm.image else str(launch.project / ".venv" / "bin" / "python"))


def _in_image(slurm: SlurmSettings, launch: Launch, *, is_gpu: bool) -> list[str]:
    """What stands before a command so that it runs in the image; nothing without one."""
    if slurm.image is None:
        return []
    binds = [f"--bind={folder}" for folder in (launch.project, launch.workspace, *slurm.binds)]
    return ["apptainer", "exec", *(["--nv"] if is_gpu else []), *binds, f"--pwd={launch.project}", slurm.image]


def _array(name: str, words: Sequence[str]) -> str:
    return f"{name}=({shlex.join(words)})"
