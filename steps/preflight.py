"""Finds what would make a later step fail, before anything is downloaded.

Every problem is printed, one line each. It ends with 78 when one of them stays until somebody acts, with 75 when all of
them may pass, and it is also the step that writes the run's settings into its folder. In a cluster the rooms' checks of
this machine (sandbox programs, memory) do not apply, since the pod that runs preflight is not the one that trains; the
cluster is looked at instead, by the pod's own account, and a sandbox of the cluster is started. What may pass there is
told and no reason to end: later steps wait for it.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from agentic.cluster.settings import ClusterSettings, MachineSettings
from agentic.cluster.troubles import Trouble
from agentic.errors import PermanentError, Problem, TransientError
from agentic.files import write_json
from agentic.images.settings import ImageSettings
from agentic.models.settings import ModelSettings
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import SandboxSettings
from agentic.tasks.settings import DataSettings
from agentic.training.settings import RaySettings, TrainSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class PreflightInput(StepInput):
    """The whole of the settings, since each section can be impossible on its own."""

    STEP: ClassVar[str] = "preflight"
    REPLAYED: ClassVar[bool] = False
    EXAMPLE: ClassVar[dict[str, Any]] = {
        "run_id": "try",
        "profile": "demo",
        "data": {"source": "mutation"},
        "model": {"source": "tiny"},
        "images": {},
        "sandbox": {"provider": "bubblewrap"},
        "rollout": {},
        "train": {"device": "cpu", "gpus_per_node": 1},
        "ray": {},
        "machine": {},
    }

    profile: str
    """Name of the profile, for the record."""
    data: DataSettings
    """The tasks."""
    model: ModelSettings
    """The policy to start from."""
    images: ImageSettings
    """The tasks' environments."""
    sandbox: SandboxSettings
    """Where untrusted code runs."""
    rollout: RolloutSettings
    """The agent, its clock and the proxy."""
    train: TrainSettings
    """What verl trains with."""
    ray: RaySettings
    """The Ray cluster of one machine."""
    machine: MachineSettings
    """What has to be there."""
    cluster: ClusterSettings = ClusterSettings()
    """Names, claims and shares; unused on one machine."""


class PreflightOutput(StepOutput):
    """What was found."""

    free_disk_gib: float
    """Free space in the workspace."""
    free_memory_gib: float
    """Memory available on this machine."""


def run(inputs: PreflightInput) -> PreflightOutput:
    """Check this machine, or the cluster's workspace, against the settings."""
    return contract.execute(inputs, _check, PreflightOutput)


def _check(inputs: PreflightInput, step: Step) -> PreflightOutput:
    from steps import machine

    root = step.workspace.root
    problems = machine.python_problems() + machine.disk_problems(root, inputs.machine.disk_gib)
    problems += machine.port_problems(inputs.rollout.proxy)
    problems += _volume_problems(inputs, root)
    if step.on_argo:
        problems += _cluster_problems(inputs, step)
    else:
        problems += machine.memory_problems(inputs.machine.memory_gib)
        problems += _room_problems(inputs, step.workspace.store_dir)
    _refuse(problems)
    sections = inputs.model_dump(mode="json", exclude={"run_id", "profile"})
    write_json(step.workspace.run_dir / "settings.json", {"profile": inputs.profile, **sections})
    return PreflightOutput(free_disk_gib=machine.free_disk_gib(root), free_memory_gib=machine.available_memory_gib())


def _volume_problems(inputs: PreflightInput, root: Path) -> list[Problem]:
    from steps import needs, volume_troubles

    needed = needs.volume_bytes(inputs, root / "models").get("runs", 0.0)
    sys.stdout.write(f"{volume_troubles.describe_model(root, inputs.model)}\n")
    sys.stdout.write(f"{volume_troubles.describe_data(root, inputs.data)}\n")
    found = volume_troubles.find_volume_troubles(root, inputs.data, inputs.model, needed)
    return [as_problem(trouble) for trouble in found]


def _cluster_problems(inputs: PreflightInput, step: Step) -> list[Problem]:
    from agentic.sandbox.settings import AgentSandbox, KruiseSandbox, PodSandbox
    from steps import cluster_troubles, workflow_owner
    from steps.cluster_troubles import find_cluster_troubles, find_sandbox_problems, is_in_the_way

    models = step.workspace.root / "models"
    found = asyncio.run(find_cluster_troubles(inputs, models, cluster_troubles.tell))
    for trouble in found:
        if not is_in_the_way(trouble):
            sys.stdout.write(f"may pass: {trouble.line}\n")
    problems = [as_problem(trouble) for trouble in found if is_in_the_way(trouble)]
    sandbox = workflow_owner.owned_by_workflow(inputs.sandbox, os.environ, on_argo=True)
    if problems or not isinstance(sandbox, PodSandbox | KruiseSandbox | AgentSandbox):
        return problems
    return asyncio.run(find_sandbox_problems(sandbox, step.workspace.store_dir, inputs.run_id))


def as_problem(trouble: Trouble) -> Problem:
    """For the same list as everything else that preflight finds."""
    return Problem(trouble.line, trouble.transient)


def _room_problems(inputs: PreflightInput, store_dir: Path) -> list[Problem]:
    from agentic.sandbox.preflight import preflight as check_sandbox
    from agentic.training.preflight import preflight as check_training

    found = asyncio.run(check_sandbox(inputs.sandbox, store_dir))
    return [*found, *check_training(inputs.train, inputs.ray)]


def _refuse(problems: list[Problem]) -> None:
    for problem in problems:
        sys.stdout.write(f"{problem.message}\n")
    if not problems:
        return
    lines = "; ".join(problem.message for problem in problems)
    raise TransientError(lines) if all(problem.transient for problem in problems) else PermanentError(lines)


if __name__ == "__main__":
    raise SystemExit(main(PreflightInput, run))
