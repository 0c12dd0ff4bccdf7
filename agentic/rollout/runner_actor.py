"""Trials in a process of their own, as a named Ray actor.

verl's agent loop workers must stay responsive and must start no processes, and a trial does neither: so the trials of a
run go to one actor, shared by all workers through its name. The actor imports neither torch nor verl. It dies with the
job that made it, and its sandboxes with it; when its process is killed it is restarted, and what it was running then is
reported as lost, to be retried.
"""

import asyncio
from typing import Any

from agentic.rollout.outcomes import TrialFacts
from agentic.rollout.trial import TrialRequest, TrialResult, TrialRunner

ACTOR_CONCURRENCY = 100_000
"""Calls that may wait in the actor at once. The runner's own limit is the one that counts: Ray's default of 1,000 would
also hold back `cancel`."""


class TrialRunnerActor:
    """A `TrialRunner` behind an actor's methods."""

    def __init__(self, concurrency: int) -> None:
        self._runner = TrialRunner(concurrency)

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`."""
        return await self._runner.run(request)

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await self._runner.cancel(trial_id)


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


def trial_runner(run_id: str, concurrency: int) -> ActorTrials:
    """The run's trial runner, made by whoever comes first."""
    import ray

    name = f"trial-runner-{run_id}"
    try:
        return ActorTrials(ray.get_actor(name))
    except ValueError:
        actor = ray.remote(TrialRunnerActor).options(
            name=name, get_if_exists=True, num_cpus=0, max_concurrency=ACTOR_CONCURRENCY, max_restarts=-1
        )
        return ActorTrials(actor.remote(concurrency))
