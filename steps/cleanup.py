"""The exit handler: ends what a run may have left, by its id. Safe to run at any time, and again."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from agentic.cluster.settings import ClusterSettings
from agentic.errors import AgenticError, PermanentError, TransientError
from agentic.sandbox.settings import KubeSandbox, SandboxSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput

ENDED = ("Succeeded", "Failed", "Error")
"""How Argo says that a workflow is over."""


class CleanupInput(StepInput):
    """The run whose leftovers go."""

    STEP: ClassVar[str] = "cleanup"
    REPLAYED: ClassVar[bool] = False
    EXAMPLE: ClassVar[dict[str, Any]] = {"run_id": "try", "sandbox": {"provider": "bubblewrap"}}

    sandbox: SandboxSettings
    """Whose sandboxes are looked for."""
    cluster: ClusterSettings = ClusterSettings()
    """Where the run's RayCluster is looked for; unused on one machine."""
    status: str = "unknown"
    """How the workflow ended; whatever else, such as `unknown`, spares the sandboxes of living owners."""


class CleanupOutput(StepOutput):
    """What was found."""

    processes: int
    """Ray processes of this machine that were ended."""
    clusters: int = 0
    """RayClusters that were removed."""
    sandboxes: int
    """Sandboxes that were ended."""
    rest: int = 0
    """Other objects of the run that were removed from the cluster, such as Jobs of builds that were going on."""


def run(inputs: CleanupInput) -> CleanupOutput:
    """End the run's Ray cluster, its sandboxes and whatever else it left."""
    return contract.execute(inputs, _clean, CleanupOutput)


def _clean(inputs: CleanupInput, step: Step) -> CleanupOutput:
    """Each part, whatever became of the one before: a pod whose node is lost may keep its cluster for ever, and is no
    reason to leave sandboxes running."""
    is_over, failures = inputs.status in ENDED, list[AgenticError]()
    attempted = partial(_attempt, failures)
    clusters = attempted(lambda: _end_cluster(inputs.cluster, step)) if step.on_argo else 0
    processes = 0 if step.on_argo else _end_processes(step)
    is_reached = isinstance(inputs.sandbox, KubeSandbox) or not step.on_argo
    sandboxes = attempted(lambda: asyncio.run(_sweep(inputs.sandbox, step, is_over=is_over))) if is_reached else 0
    rest: list[str] = []
    if step.on_argo and is_over:
        attempted(lambda: rest.extend(asyncio.run(_sweep_rest(inputs.cluster, step))))
    what = "RayClusters" if step.on_argo else "processes"
    more = f", removed: {', '.join(rest)}" if rest else ""
    line = f"{clusters if step.on_argo else processes} {what} and {sandboxes} sandboxes ended{more}"
    step.progress(1, 1, line)
    _raise_all(failures, line)
    return CleanupOutput(processes=processes, clusters=clusters, sandboxes=sandboxes, rest=len(rest))


def _attempt(failures: list[AgenticError], part: Callable[[], int | None]) -> int:
    """What the part gives, or 0 and its failure kept."""
    try:
        return part() or 0
    except AgenticError as error:
        failures.append(error)
        return 0


def _raise_all(failures: list[AgenticError], line: str) -> None:
    """As one that may pass, if one of them may."""
    if not failures:
        return
    kind = TransientError if any(isinstance(one, TransientError) for one in failures) else PermanentError
    raise kind(f"{'; '.join(map(str, failures))} ({line})")


def _end_processes(step: Step) -> int:
    from agentic.training import ray_cluster

    return ray_cluster.stop(step.workspace.run_id, step.workspace.run_dir)


def _end_cluster(cluster: ClusterSettings, step: Step) -> int:
    """First of all: the trainer in its head's pod must not go on while its sandboxes are swept."""
    from steps.ray_head import end_cluster

    return int(end_cluster(cluster, step))


async def _sweep(sandbox: SandboxSettings, step: Step, *, is_over: bool) -> int:
    """From another pod than the trainer's, which may have been killed a moment ago and still look alive."""
    from agentic.sandbox.kube.provider import KubeProvider
    from agentic.sandbox.providers import make_provider, open_store

    provider = make_provider(sandbox, open_store(step.workspace.store_dir, sandbox))
    try:
        if isinstance(provider, KubeProvider):
            return await provider.sweep(step.workspace.run_id, is_over=is_over)
        return await provider.sweep(step.workspace.run_id)
    finally:
        await provider.close()


async def _sweep_rest(cluster: ClusterSettings, step: Step) -> list[str]:
    """What else carries the run's label. What has ended keeps its log until the run itself is cleaned up."""
    from agentic.cluster.client import KubeClient
    from agentic.cluster.credentials import LoadedCredentials
    from agentic.cluster.sweep import sweep

    async with KubeClient(LoadedCredentials(), namespace=cluster.namespace) as client:
        return await sweep(client, cluster.namespace, step.workspace.run_id, keeps_logs=True)


if __name__ == "__main__":
    raise SystemExit(main(CleanupInput, run))
