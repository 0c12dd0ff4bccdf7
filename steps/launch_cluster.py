"""Makes the run's Ray cluster, or finds it running: the RayCluster in a cluster, a head on one machine. `train` and
`evaluate` ensure it as well."""

from typing import Any, ClassVar

from agentic.cluster.settings import ClusterSettings
from agentic.rollout.settings import RolloutSettings
from agentic.training.settings import RaySettings, TrainSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class LaunchClusterInput(StepInput):
    """The cluster's size."""

    STEP: ClassVar[str] = "launch-cluster"
    REPLAYED: ClassVar[bool] = False
    EXAMPLE: ClassVar[dict[str, Any]] = {
        "run_id": "try",
        "ray": {"cpus": 4},
        "train": {"device": "cpu", "gpus_per_node": 1},
    }

    ray: RaySettings
    """CPUs and shared memory of the head."""
    train: TrainSettings
    """Device and GPUs."""
    rollout: RolloutSettings = RolloutSettings()
    """Whether the pods need a trial server's key; unused on one machine."""
    cluster: ClusterSettings = ClusterSettings()
    """The RayCluster's pods; unused on one machine."""


class LaunchClusterOutput(StepOutput):
    """Where it answers."""

    address: str
    """Host and port of the head."""
    dashboard: str = ""
    """Where its dashboard and its job API answer; empty on one machine, which has none."""


def run(inputs: LaunchClusterInput) -> LaunchClusterOutput:
    """Start Ray, or find it running."""
    return contract.execute(inputs, _launch, LaunchClusterOutput)


def _launch(inputs: LaunchClusterInput, step: Step) -> LaunchClusterOutput:
    if step.on_argo:
        from steps.ray_head import launch

        head = launch(inputs.cluster, inputs.ray, inputs.train, inputs.rollout, step)
        step.progress(1, 1, f"Ray answers in pod {head.pod}")
        service = f"{head.cluster}-head-svc.{inputs.cluster.namespace}.svc"
        return LaunchClusterOutput(address=f"{service}:6379", dashboard=f"http://{service}:8265")
    from agentic.training.job import ensure_cluster

    address = ensure_cluster(step.workspace.run_id, step.workspace.run_dir, inputs.ray, inputs.train)
    step.progress(1, 1, f"Ray answers at {address}")
    return LaunchClusterOutput(address=address)


if __name__ == "__main__":
    raise SystemExit(main(LaunchClusterInput, run))
