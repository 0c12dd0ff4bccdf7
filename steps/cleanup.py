"""The exit handler: ends what a run may have left, by its id. Safe to run at any time, and again."""

import asyncio
from typing import Any, ClassVar

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
    status: str = "unknown"
    """How the workflow ended; whatever else, such as `unknown`, spares the sandboxes of living owners."""


class CleanupOutput(StepOutput):
    """What was found."""

    processes: int
    """Ray processes that were ended."""
    sandboxes: int
    """Sandboxes that were ended."""


def run(inputs: CleanupInput) -> CleanupOutput:
    """End the run's Ray cluster and its sandboxes."""
    return contract.execute(inputs, _clean, CleanupOutput)


def _clean(inputs: CleanupInput, step: Step) -> CleanupOutput:
    from agentic.training import ray_cluster

    processes = ray_cluster.stop(step.workspace.run_id, step.workspace.run_dir)
    is_reached = isinstance(inputs.sandbox, KubeSandbox) or not step.on_argo
    is_over = inputs.status in ENDED
    sandboxes = asyncio.run(_sweep(inputs.sandbox, step, is_over=is_over)) if is_reached else 0
    step.progress(1, 1, f"{processes} processes and {sandboxes} sandboxes ended")
    return CleanupOutput(processes=processes, sandboxes=sandboxes)


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


if __name__ == "__main__":
    raise SystemExit(main(CleanupInput, run))
