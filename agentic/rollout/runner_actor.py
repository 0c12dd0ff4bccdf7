"""Trials in a process of their own, as a named Ray actor.

verl's agent loop workers must stay responsive and must start no processes, and a trial does neither: so the trials of a
run go to one actor, shared by all workers through its name. The actor imports neither torch nor verl. It dies with the
job that made it. When its process is killed it is restarted: what it was running then is reported as lost, to be
retried, and the next process sweeps away what sandboxes the last one left.
"""

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic.errors import PermanentError
from agentic.rollout.actors import StartOnce, cause_of, named_actor
from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.outcomes import TrialFacts
from agentic.rollout.trial import TrialRequest, TrialResult, TrialRunner, sandboxed_runner
from agentic.sandbox.settings import SandboxSettings


class TrialRunnerActor:
    """A `TrialRunner` behind an actor's methods, made at the first call since it belongs to the actor's event loop."""

    def __init__(
        self,
        run_id: str,
        store_dir: Path,
        sandbox: SandboxSettings,
        concurrency: int,
        expected: Sequence[Path] = (),
    ) -> None:
        """`expected`: folders of the tasks to come, the first ones first."""
        self._make = functools.partial(sandboxed_runner, run_id, store_dir, sandbox, concurrency)
        self._expected = expected
        self._runner: TrialRunner | None = None
        self._started = StartOnce(self._start)

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`."""
        return await (await self._started.get()).run(request)

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await (await self._started.get()).cancel(trial_id)

    async def _start(self) -> TrialRunner:
        self._runner = self._runner or self._make()
        await self._runner.sweep()
        await self._runner.expect(self._expected)
        return self._runner


class ActorTrials:
    """`TrialControl` over the actor's handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`. Cancelling the caller cancels the trial. Raises what is permanent, such as settings
        that cannot work on this machine."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            result: TrialResult = await self._actor.run.remote(request)
        except asyncio.CancelledError:
            self._actor.cancel.remote(request.trial_id)
            raise
        except RayActorError as error:
            facts = TrialFacts(exception=type(error).__name__, message="the trial runner's process died")
            return TrialResult(request.trial_id, facts)
        except RayTaskError as error:
            cause = cause_of(error)
            if isinstance(cause, PermanentError):
                raise cause from error
            message = f"the trial runner failed: {cause}"
            return TrialResult(request.trial_id, TrialFacts(exception=type(cause).__name__, message=message))
        return result

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await self._actor.cancel.remote(trial_id)


@functools.cache
def trials_of_run(job: RolloutJob) -> ActorTrials:
    """The run's trial runner, made by whoever comes first; kept for the life of the process, as the proxy is."""
    arguments = (job.run_id, job.store_dir, job.sandbox, job.rollout.concurrency, job.expected_tasks())
    return ActorTrials(named_actor(f"trial-runner-{job.run_id}", TrialRunnerActor, *arguments))
