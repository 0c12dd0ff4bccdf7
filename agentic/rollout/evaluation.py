"""Measures a policy on held-out tasks: greedy rollouts, without verl or Ray.

The same session, trial, verdict and record as in training, with the proxy and the trials in this process, so that a
rate measured here and one measured by the trainer's validation mean the same. Resumable: a task that already has a
graded record of this checkpoint is not run again; one that was lost to infrastructure is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from agentic.proxy import Engine, ProxyServer, ProxySettings, Renderer, Sampling
from agentic.rollout.atif import Decode
from agentic.rollout.engine_time import TimedEngine, TimedProxy
from agentic.rollout.folder import leave_folders
from agentic.rollout.pacing import rare_full_collections
from agentic.rollout.proxy_socket import advertised, prepare_folder, proxy_settings, sandbox_environment
from agentic.rollout.records import Phase, RolloutRecord, append_record, read_records
from agentic.rollout.rollouts import ProxyControl, RolloutRequest, make_record, run_rollout
from agentic.rollout.server.client import open_server
from agentic.rollout.settings import RolloutSettings
from agentic.rollout.trial import TrialControl, sandboxed_runner
from agentic.sandbox.settings import SandboxSettings

OnRecord = Callable[[int, int, RolloutRecord], None]
"""Told after each rollout: how many are done, how many there are, and the record."""


class EvaluationTask(NamedTuple):
    """One held-out task."""

    task: str
    split: str


class Told(NamedTuple):
    """What people get of an evaluation under way."""

    total: int
    decode: Decode
    on_record: OnRecord | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured, and where its parts are; paths are absolute."""

    run_id: str
    run_dir: Path
    data_dir: Path
    store_dir: Path
    checkpoint: str
    """Names the policy in the records; `base` for the one before training."""
    step: int
    """The checkpoint's step; 0 before training."""
    rollout: RolloutSettings
    sandbox: SandboxSettings
    prompt_tokens: int
    response_tokens: int

    def task_dir(self, task: str) -> Path:
        """A task's folder in Harbor's format."""
        return self.data_dir / "tasks" / task

    @property
    def proxy(self) -> ProxySettings:
        """What the evaluation's proxy is started with."""
        return proxy_settings(self.rollout, self.sandbox, str(self.run_dir), "evaluate", self.checkpoint)


async def evaluate(
    evaluation: Evaluation,
    tasks: Sequence[EvaluationTask],
    engine: Engine,
    renderer: Renderer,
    on_record: OnRecord | None = None,
) -> list[RolloutRecord]:
    """The records of all tasks, in the order of `tasks`. The engine is closed at the end."""
    known = graded_records(evaluation)
    missing = [task for task in tasks if task not in known]
    if missing:
        async with _proxy(evaluation, engine, renderer) as proxy, _trials(evaluation, missing) as trials:
            told = Told(len(tasks), renderer.decode, on_record)
            measured = await _measure(evaluation, missing, proxy, trials, told)
        known |= dict(zip(missing, measured, strict=True))
    return [known[task] for task in tasks]


@asynccontextmanager
async def _proxy(evaluation: Evaluation, engine: Engine, renderer: Renderer) -> AsyncIterator[ProxyControl]:
    timed = TimedEngine(engine)
    proxy = ProxyServer(advertised(evaluation.proxy), timed, renderer)
    prepare_folder(proxy.unix_socket)
    await proxy.start()
    try:
        yield TimedProxy(proxy, timed)
    finally:
        await proxy.stop()


@asynccontextmanager
async def _trials(evaluation: Evaluation, tasks: Sequence[EvaluationTask]) -> AsyncIterator[TrialControl]:
    """Who runs the trials: this process, which is told what is to come, or the trial server of the settings."""
    rollout = evaluation.rollout
    if not rollout.use_local_trial:
        server = open_server(rollout)
        try:
            yield server
        finally:
            await server.close()
        return
    runner = sandboxed_runner(evaluation.run_id, evaluation.store_dir, evaluation.sandbox, rollout.concurrency)
    try:
        await runner.expect(evaluation.task_dir(task.task) for task in tasks)
        with rare_full_collections():
            yield runner
    finally:
        await runner.close()


def graded_records(evaluation: Evaluation) -> dict[EvaluationTask, RolloutRecord]:
    """What is measured already of this policy."""
    return {
        EvaluationTask(record.task, record.split): record
        for record in read_records(evaluation.run_dir, Phase.EVALUATE)
        if record.checkpoint == evaluation.checkpoint and record.outcome.is_graded
    }


async def _measure(
    evaluation: Evaluation,
    tasks: Sequence[EvaluationTask],
    proxy: ProxyControl,
    trials: TrialControl,
    told: Told,
) -> list[RolloutRecord]:
    done = told.total - len(tasks)

    async def one(task: EvaluationTask) -> RolloutRecord:
        nonlocal done
        result = await run_rollout(_request(evaluation, task), evaluation.rollout, proxy, trials)
        record = make_record(result)
        append_record(evaluation.run_dir, record)
        await asyncio.to_thread(leave_folders, result, evaluation.rollout, told.decode)
        done += 1
        if told.on_record:
            told.on_record(done, told.total, record)
        return record

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task)) for task in tasks]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in running]


def _request(evaluation: Evaluation, task: EvaluationTask) -> RolloutRequest:
    return RolloutRequest(
        rollout_id=f"evaluate-{uuid4().hex}",
        phase=Phase.EVALUATE,
        step=evaluation.step,
        task=task.task,
        split=task.split,
        task_dir=str(evaluation.task_dir(task.task)),
        trials_dir=str(evaluation.run_dir / "trials"),
        sampling=Sampling(temperature=0.0, max_tokens=evaluation.rollout.max_call_tokens),
        prompt_tokens=evaluation.prompt_tokens,
        response_tokens=evaluation.response_tokens,
        checkpoint=evaluation.checkpoint,
        environment=sandbox_environment(evaluation.rollout.agent, evaluation.proxy),
    )
