"""What every launcher starts once its nodes have joined, and which settings cannot run under one. Pure.

A launcher starts Ray on its nodes; on the first it then runs the very workflow of this machine, `submit.py local`, told
by AGENTIC_RAY_ADDRESS where Ray is. So retries, resuming and reports are those of a local run, and one that is started
again under the same id goes on where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentic.sandbox.settings import KubeSandbox
from workflows.errors import CommandError
from workflows.settings import Settings


@dataclass(frozen=True)
class Launch:
    """One run, as a launcher is told of it."""

    run_id: str
    profile: str
    arguments: tuple[str, ...]
    """Settings of the command line, `section.key=value`."""
    variables: tuple[tuple[str, str], ...]
    """Environment variables that are settings."""
    start_from: str | None
    project: PurePosixPath
    """The project's folder, absolute; all nodes of a Slurm cluster see it there."""
    workspace: PurePosixPath
    """The workspace, likewise."""


def workflow_command(python: str, launch: Launch) -> list[str]:
    """The workflow of this machine, for the same run."""
    assignments = [f"{name}={value}" for name, value in launch.variables]
    words = ["env", *assignments] if assignments else []
    words += [python, "workflows/submit.py", "local", "--profile", launch.profile, "--run-id", launch.run_id]
    words += ["--start-from", launch.start_from] if launch.start_from else []
    return [*words, *launch.arguments]


def payload(command: Sequence[str], python: str, launch: Launch) -> list[str]:
    """What runs on the head: a command of the settings' own, or the workflow."""
    return list(command) or workflow_command(python, launch)


def check_sandboxes(settings: Settings, target: str) -> None:
    """Refuse what needs Kubernetes where there is none.

    Raises:
        CommandError: sandboxes are to be pods.
    """
    if isinstance(settings.sandbox, KubeSandbox) and settings.rollout.use_local_trial:
        raise CommandError(
            f"sandbox.provider is {settings.sandbox.provider} but --target {target} has no Kubernetes: use "
            "sandbox.provider=bubblewrap or podman, or a trial server with rollout.use_local_trial=false"
        )
