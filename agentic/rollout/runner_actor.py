"""Trials in a process of their own, as a named Ray actor.

verl's agent loop workers must stay responsive and must start no processes, and a trial does neither: so the trials of a
run go to one actor, shared by all workers through its name. The actor imports neither torch nor verl. It dies with the
job that made it. When its process is killed it is restarted: what it was running then is reported as lost, to be
retried, and the next process sweeps away what sandboxes the last one left. When a worker is killed instead, nobody can
take its trials' results any more: each worker says from time to time that it lives, and the trials of one that has not
are ended with their sandboxes.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from agentic.errors import PermanentError
from agentic.rollout.actors import RETURN_SECONDS, Return, StartOnce, cause_of, named_actor
from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.leases import Leases
from agentic.rollout.outcomes import TrialFacts
from agentic.rollout.pacing import rare_full_collections
from agentic.rollout.server.client import open_server
from agentic.rollout.trial import (
    CLEANUP_SECONDS,
    TrialControl,
    TrialRequest,
    TrialResult,
    TrialRunner,
    import_early,
    sandboxed_runner,
)
from agentic.sandbox.settings import SandboxSettings

LEASE_SECONDS = 90.0
"""How long a worker may be silent. One whose event loop stands still for so long has lost its rollouts anyway."""

BEAT_SECONDS = 15.0
"""Between two signs of life of a worker."""

_ANSWER_SECONDS = 5.0
"""For a runner's answer, on top of what a trial that is cancelled may take."""

_GONE = TrialFacts(exception="WorkerGone", message="the worker that wanted this trial has died")


class TrialRunnerActor:
    """A `TrialRunner` behind an actor's methods, made at the first call since it belongs to the actor's event loop."""

    def __init__(
        self,
        run_id: str,
        store_dir: Path,
        sandbox: SandboxSettings,
        concurrency: int,
        expected: Sequence[Path] = (),
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """`expected`: folders of the tasks to come, the first ones first. Harbor's import begins at once, beside the
        start of the proxy, which the first trial waits for as well."""
        threading.Thread(target=import_early, name="import-early", daemon=True).start()
        self._make = functools.partial(sandboxed_runner, run_id, store_dir, sandbox, concurrency)
        self._expected = expected
        self._runner: TrialRunner | None = None
        self._started = StartOnce(self._start)
        self._lease_seconds = lease_seconds
        self._leases = Leases(lease_seconds)
        self._trials: dict[str, set[str]] = {}
        """By worker."""
        self._watching: asyncio.Task[None] | None = None
        self._exits = contextlib.ExitStack()

    async def run(self, request: TrialRequest, worker: str) -> TrialResult:
        """See `TrialControl.run`; `worker` is who wants it, for as long as it renews."""
        runner = await self._started.get()
        self._leases.renew(worker)
        trials = self._trials.setdefault(worker, set())
        trials.add(request.trial_id)
        try:
            return await runner.run(request)
        finally:
            trials.discard(request.trial_id)

    async def renew(self, worker: str) -> None:
        """This worker lives."""
        self._leases.renew(worker)

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await (await self._started.get()).cancel(trial_id)

    async def close(self) -> None:
        """End all trials and their sandboxes."""
        if self._watching is not None:
            self._watching.cancel()
        self._exits.close()
        if self._runner is not None:
            await self._runner.close()

    async def _watch(self, runner: TrialRunner) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 4)
            for worker in self._leases.expired():
                self._leases.end(worker)
                for trial_id in self._trials.pop(worker, set()):
                    await runner.cancel(trial_id, _GONE)

    async def _start(self) -> TrialRunner:
        self._runner = self._runner or self._make()
        await self._runner.sweep()
        await self._runner.expect(self._expected)
        self._exits.enter_context(rare_full_collections())
        self._watching = self._watching or asyncio.create_task(self._watch(self._runner))
        return self._runner


class ActorTrials:
    """`TrialControl` over the actor's handle, for one worker."""

    def __init__(self, actor: Any, beat_seconds: float = BEAT_SECONDS, return_seconds: float = RETURN_SECONDS) -> None:
        self._actor = actor
        self._return = Return(actor, return_seconds)
        self._beat_seconds = beat_seconds
        self._worker = uuid4().hex
        self._running = 0
        self._beating: asyncio.Task[None] | None = None

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`. Raises what is permanent, such as settings that cannot work on this machine."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            with self._alive():
                result = await self._run(request)
        except RayActorError as error:
            await self._return.wait()
            facts = TrialFacts(exception=type(error).__name__, message="the trial runner's process died")
            return TrialResult(request.trial_id, facts)
        except RayTaskError as error:
            cause = cause_of(error)
            if isinstance(cause, PermanentError):
                raise cause from error
            message = f"the trial runner failed: {cause}"
            return TrialResult(request.trial_id, TrialFacts(exception=type(cause).__name__, message=message))
        return result

    async def _run(self, request: TrialRequest) -> TrialResult:
        ending = asyncio.ensure_future(self._actor.run.remote(request, self._worker))
        try:
            result: TrialResult = await asyncio.shield(ending)
        except asyncio.CancelledError:
            # The actor's call goes on: it returns once the sandbox has stopped, or has been given up.
            self._actor.cancel.remote(request.trial_id)
            await asyncio.wait({ending}, timeout=CLEANUP_SECONDS + _ANSWER_SECONDS)
            if not ending.cancel() and not ending.cancelled():
                ending.exception()  # Looked at, so that nobody is told that nobody did.
            raise
        return result

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        await self._actor.cancel.remote(trial_id)

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """Within, the actor hears of this worker."""
        self._running += 1
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            self._running -= 1
            if not self._running and self._beating is not None:
                self._beating.cancel()
                self._beating = None

    async def _beat(self) -> None:
        from ray.exceptions import RayError

        while True:
            await asyncio.sleep(self._beat_seconds)
            with contextlib.suppress(RayError):  # Whoever waits for a trial hears of a dead actor.
                await self._actor.renew.remote(self._worker)


@functools.cache
def trials_of_run(job: RolloutJob) -> TrialControl:
    """Who runs the run's trials: its own trial runner, made by whoever comes first, or the trial server of its
    settings. Kept for the life of the process, as the proxy is."""
    if not job.rollout.use_local_trial:
        return open_server(job.rollout)
    arguments = (job.run_id, job.store_dir, job.sandbox, job.rollout.concurrency, job.expected_tasks())
    return ActorTrials(named_actor(f"trial-runner-{job.run_id}", TrialRunnerActor, *arguments))
