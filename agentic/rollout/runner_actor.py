"""Trials in a process of their own, as a named Ray actor.

verl's agent loop workers must stay responsive and must start no processes, and a trial does neither: so the trials of a
run go to one actor, shared by all workers through its name. The actor imports neither torch nor verl. It dies with the
job that made it. When its process is killed it is restarted: what it was running then is reported as lost, to be
retried, and the next process sweeps away what sandboxes the last one left.
"""

import asyncio
import functools
from pathlib import Path
from typing import Any

from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.outcomes import TrialFacts
from agentic.rollout.trial import TrialRequest, TrialResult, TrialRunner, sandboxed_runner
from agentic.sandbox.settings import SandboxSettings

ACTOR_CONCURRENCY = 100_000
"""Calls that may wait in the actor at once. The runner's own limit is the one that counts: Ray's default of 1,000 would
also hold back `cancel`."""


class TrialRunnerActor:
    """A `TrialRunner` behind an actor's methods, made at the first call since it belongs to the actor's event loop."""

    def __init__(self, run_id: str, store_dir: Path, sandbox: SandboxSettings, concurrency: int) -> None:
        self._run_id = run_id
        self._make = functools.partial(sandboxed_runner, run_id, store_dir, sandbox, concurrency)
        self._starting: asyncio.Task[TrialRunner] | None = None

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`."""
        return await (await self._runner()).run(request)

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await (await self._runner()).cancel(trial_id)

    async def _runner(self) -> TrialRunner:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> TrialRunner:
        runner = self._make()
        await runner.sweep()
        return runner


class ActorTrials:
    """`TrialControl` over the actor's handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`. Cancelling the caller cancels the trial."""
        from ray.exceptions import RayActorError

        try:
            result: TrialResult = await self._actor.run.remote(request)
        except asyncio.CancelledError:
            self._actor.cancel.remote(request.trial_id)
            raise
        except RayActorError as error:
            facts = TrialFacts(exception=type(error).__name__, message="the trial runner's process died")
            return TrialResult(request.trial_id, facts)
        return result

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await self._actor.cancel.remote(trial_id)


@functools.cache
def trials_of_run(job: RolloutJob) -> ActorTrials:
    """The run's trial runner, made by whoever comes first; kept for the life of the process, as the proxy is."""
    import ray

    name = f"trial-runner-{job.run_id}"
    try:
        return ActorTrials(ray.get_actor(name))
    except ValueError:
        actor = ray.remote(TrialRunnerActor).options(
            name=name, get_if_exists=True, num_cpus=0, max_concurrency=ACTOR_CONCURRENCY, max_restarts=-1
        )
        return ActorTrials(actor.remote(job.run_id, job.store_dir, job.sandbox, job.rollout.concurrency))
