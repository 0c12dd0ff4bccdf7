"""The best checkpoint against the starting policy, on held-out tasks.

"After" is measured here: one engine, greedy rollouts over every held-out split. "Before" is the validation that the
trainer ran before its first step: the same tasks, the same greedy sampling, agent and sandbox, so measuring it again
would cost an engine start and say the same. It is measured here only if that validation is missing. A loop of verl's
own runs within verl only, so both sides are then its greedy validations.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agentic import files
from agentic.errors import PermanentError
from agentic.proxy import make_renderer
from agentic.proxy.engines.vllm_http import VllmHttpEngine
from agentic.rollout.evaluation import Evaluation, EvaluationTask, graded_records
from agentic.rollout.evaluation import evaluate as run_evaluation
from agentic.rollout.records import Phase, RolloutRecord, read_records, summarise
from agentic.sandbox.settings import pooled_for
from agentic.training.engine_server import serve
from agentic.training.job import trainer_threads
from agentic.training.jobs import EvaluationSummary, Rate, SplitEvaluation, TrainJob, TrainSummary
from agentic.training.resume import claim

OnProgress = Callable[[int, int, str], None]


async def evaluate(job: TrainJob, summary: TrainSummary, on_progress: OnProgress) -> EvaluationSummary:
    """Measure, and write `evaluation.json`. Resumable: rollouts that are recorded are not run again.

    Raises:
        EngineStartError: vLLM did not start.
        PermanentError: the run's rollouts belong to other settings.
    """
    started = time.monotonic()
    claim(job)
    tasks = held_out_tasks(job)
    before = validation_at(job.run_dir, 0, tasks)
    if job.train.agent_loop == "remote_agent":
        if before is None:
            on_progress(0, len(tasks), "the starting policy, since no validation before training is recorded")
            before = await _measure(job, job.model_dir, 0, "base", tasks, on_progress)
        policy = job.run_dir / summary.checkpoint
        after = await _measure(job, policy, summary.best_step, summary.checkpoint, tasks, on_progress)
    else:
        before, after = _as_validated(job, before, summary.best_step, tasks)
    names = [held_out.split for held_out in job.held_out()]
    splits = {name: SplitEvaluation(before=rate(before, name), after=rate(after, name)) for name in names}
    result = EvaluationSummary(
        checkpoint=summary.checkpoint,
        checkpoint_step=summary.best_step,
        seconds=round(time.monotonic() - started, 1),
        splits=splits,
    )
    files.write_text(job.run_dir / "evaluation.json", result.model_dump_json(indent=1))
    return result


def held_out_tasks(job: TrainJob) -> list[EvaluationTask]:
    """Every task of every validation split, by the data set's manifest."""
    return [EvaluationTask(task, held_out.split) for held_out in job.held_out() for task in held_out.tasks]


def validation_at(run_dir: Path, step: int, tasks: Iterable[EvaluationTask]) -> list[RolloutRecord] | None:
    """The records of the validation at a step (0: before training), if it has one for each task."""
    found = {
        EvaluationTask(record.task, record.split): record
        for record in read_records(run_dir, Phase.VALIDATION)
        if record.step == step
    }
    wanted = list(tasks)
    return [found[task] for task in wanted] if all(task in found for task in wanted) else None


def _as_validated(
    job: TrainJob, before: list[RolloutRecord] | None, step: int, tasks: list[EvaluationTask]
) -> tuple[list[RolloutRecord], list[RolloutRecord]]:
    """Both sides by the trainer's own greedy validations, where the loop that was trained runs within verl alone."""
    after = validation_at(job.run_dir, step, tasks)
    if before is None or after is None:
        missing = "before training" if before is None else f"at step {step}"
        raise PermanentError(
            f"no whole validation {missing} is recorded, and {job.train.agent_loop} runs within verl only: train again"
        )
    return before, after


def rate(records: Iterable[RolloutRecord], split: str) -> Rate:
    """The resolve rate of one split."""
    counts = summarise(record for record in records if record.split == split)
    return Rate(resolved=counts.resolved, graded=counts.graded, infra=counts.infra, rate=counts.resolve_rate)


async def _measure(
    job: TrainJob,
    policy: Path,
    step: int,
    name: str,
    tasks: list[EvaluationTask],
    on_progress: OnProgress,
) -> list[RolloutRecord]:
    evaluation = Evaluation(
        run_id=job.run_id,
        run_dir=job.run_dir,
        data_dir=job.data_dir,
        store_dir=job.store_dir,
        checkpoint=name,
        step=step,
        rollout=job.rollout,
        sandbox=pooled_for(job.sandbox, samples=1),
        prompt_tokens=job.train.max_prompt_tokens,
        response_tokens=job.train.max_response_tokens,
    )

    def report(done: int, total: int, record: RolloutRecord) -> None:
        on_progress(done, total, f"{name}: {record.task} {record.outcome}")

    known = graded_records(evaluation)
    if all(task in known for task in tasks):
        return [known[task] for task in tasks]
    on_progress(len(known), len(tasks), f"starting vLLM for {name}")
    log = job.run_dir / "logs" / "engine.log"
    threads = trainer_threads(job.train)
    async with serve(policy, job.train, run_id=job.run_id, workspace=job.workspace, threads=threads, log=log) as url:
        engine = VllmHttpEngine(url, model="policy")
        return await run_evaluation(evaluation, tasks, engine, make_renderer(policy), report)
