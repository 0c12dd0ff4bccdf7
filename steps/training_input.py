"""What `train` and `evaluate` are both given."""

import os
from typing import TYPE_CHECKING, Any, ClassVar

from agentic.cluster.settings import ClusterSettings
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import SandboxSettings
from agentic.training.settings import RaySettings, TrainSettings
from steps.contract import Step, StepInput
from steps.workflow_owner import owned_by_workflow

if TYPE_CHECKING:
    from agentic.training.jobs import TrainJob


class TrainingInput(StepInput):
    """A policy, tasks, and how to train on them."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "run_id": "try",
        "model_dir": "models/tiny",
        "data_dir": "datasets/repair",
        "train": {"device": "cpu", "gpus_per_node": 1, "steps": 2},
        "ray": {"cpus": 4},
        "rollout": {},
        "sandbox": {"provider": "bubblewrap"},
    }

    model_dir: str
    """Folder of the starting policy."""
    data_dir: str
    """Folder of the data set."""
    train: TrainSettings
    """What verl trains with."""
    ray: RaySettings
    """The Ray cluster of one machine."""
    rollout: RolloutSettings
    """The agent, its clock, the reward and the proxy."""
    sandbox: SandboxSettings
    """Where untrusted code runs."""
    cluster: ClusterSettings = ClusterSettings()
    """The RayCluster whose head does the work; unused on one machine."""


def training_job(inputs: TrainingInput, step: Step) -> "TrainJob":
    """The same, with the workspace's absolute paths."""
    from agentic.training.jobs import TrainJob

    workspace = step.workspace
    return TrainJob(
        run_id=workspace.run_id,
        run_dir=workspace.run_dir,
        model_dir=workspace.root / inputs.model_dir,
        data_dir=workspace.root / inputs.data_dir,
        store_dir=workspace.store_dir,
        train=inputs.train,
        ray=inputs.ray,
        rollout=inputs.rollout,
        sandbox=owned_by_workflow(inputs.sandbox, os.environ, on_argo=step.on_argo),
    )
