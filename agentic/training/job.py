"""Runs stock `verl.trainer.main_ppo` as a child process and reports on it.

The trainer is verl's own entry point, unedited; what makes it ours is its command line (`overrides.py`), the agent
loop that it loads by name and, without a GPU, the platform plug-in. This module starts it, follows its metrics and the
rollout records, ends it when asked, and says how it ended.

Resuming: a killed trainer leaves whole checkpoints; the next call goes on from the latest (`resume.py` decides what is
left). A job whose last step is saved and validated returns at once, and one whose settings differ is refused.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from agentic import processes
from agentic.errors import PermanentError
from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.data_order import DataOrder
from agentic.sandbox.settings import pooled_for
from agentic.training import checkpoints, children, metrics, ray_cluster, ray_nodes, resume
from agentic.training.environment import cpu_environment, trainer_environment
from agentic.training.errors import TrainingError, TrainingInterrupted
from agentic.training.jobs import HeldOut, TrainJob, TrainSummary
from agentic.training.metrics import StepMetrics
from agentic.training.overrides import JobPaths, agent_loops, environment_overrides, verl_overrides
from agentic.training.progress import Watch, read_curve
from agentic.training.settings import RaySettings, TrainSettings
from agentic.training.sizing import read_shape, resolve
from agentic.training.tools.serving import tools_of

OnProgress = Callable[[int, int, str], None]

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 20.0


class Launch(NamedTuple):
    """One start of the trainer."""

    arguments: list[str]
    environment: dict[str, str]
    metrics: Path
    log: Path


async def train(job: TrainJob, on_progress: OnProgress, address: str | None = None) -> TrainSummary:
    """Train to the last step, or until validation stops rising.

    Args:
        address: of the Ray head to train on; `None` = one of this machine, started if there is none.

    Raises:
        SizingError, PermanentError: settings that cannot run; nothing was started.
        TrainingError: verl failed for a reason that another try would meet again.
        TrainingInterrupted: the trainer or Ray went away; trying again resumes.
    """
    job.run_dir.mkdir(parents=True, exist_ok=True)
    resume.claim(job)
    plan = _plan(job)
    if not plan.is_done:
        async with tools_of(job) as tool_file:
            await _run(job, prepare(job, plan, address, tool_file), on_progress)
    return summarise(job)


def _plan(job: TrainJob) -> resume.Plan:
    logged, decisive = metrics.collect(job.run_dir), job.held_out()[0]
    stalled = metrics.has_stalled(read_curve(job.run_dir, logged, decisive), job.train.patience)
    validated = metrics.validated_steps(logged, decisive.source)
    return resume.plan(checkpoints.latest_step(job.checkpoint_dir), validated, job.train, stalled=stalled)


def prepare(job: TrainJob, plan: resume.Plan, address: str | None = None, tool_file: Path | None = None) -> Launch:
    """Check the settings against the model, write what verl and the agent loop read, make sure that Ray runs."""
    sizing = resolve(job.train, read_shape(job.model_dir))
    loops, rollout_config = job.run_dir / "agent_loops.yaml", job.run_dir / "rollout.json"
    loops.write_text(agent_loops(job.train))
    rollout_config.write_text(rollout_job(job).model_dump_json(indent=1))
    paths = JobPaths(
        model_dir=job.model_dir,
        train_file=job.train_file,
        validation_files=tuple(held_out.file for held_out in job.held_out()),
        checkpoint_dir=job.checkpoint_dir,
        agent_loop_file=loops,
        audit_file=job.run_dir / "trained.jsonl",
        tool_file=tool_file,
    )
    first, only = plan.validates_first, plan.validates_only
    arguments = verl_overrides(job.train, sizing, paths, run_id=job.run_id, validates_first=first, validates_only=only)
    attempt = metrics.attempt_file(job.run_dir)
    environment = trainer_environment(
        job.run_id,
        job.workspace,
        device=job.train.device,
        threads=trainer_threads(job.train),
        token_file=ray_cluster.token_file(job.run_dir),
        rollout_config=rollout_config,
        metrics=attempt,
        has_critic=job.train.algorithm == "ppo",
    )
    head = address or ensure_cluster(job.run_id, job.run_dir, job.ray, job.train)
    arguments.append(f"+ray_kwargs.ray_init.address={head}")
    arguments += environment_overrides(environment)
    logs = job.run_dir / "logs"
    logs.mkdir(exist_ok=True)
    return Launch(arguments, environment, attempt, logs / "trainer.log")


def ensure_cluster(run_id: str, run_dir: Path, ray: RaySettings, train: TrainSettings) -> str:
    """The address of the run's Ray head: the one that a launcher has started, or one of this machine, started if it
    does not answer.

    Raises:
        TransientError: Ray did not start, or the launcher's head does not answer.
    """
    if (launched := ray_nodes.launched_head(os.environ)) is not None:
        return launched
    environment = cpu_environment(trainer_threads(train)) if train.device == "cpu" else {}
    return ray_cluster.ensure(run_id, ray, run_dir, environment, train.gpus_per_node)


def trainer_threads(train: TrainSettings) -> int:
    """OpenMP threads of a process; more than two buy nothing for models that fit a CPU."""
    return train.threads or min(2, os.cpu_count() or 1)


def summarise(job: TrainJob) -> TrainSummary:
    """Where training stands by its metrics and checkpoints.

    Raises:
        TrainingError: no checkpoint meets a validation.
    """
    logged = metrics.collect(job.run_dir)
    decisive = job.held_out()[0]
    curve = read_curve(job.run_dir, logged, decisive)
    saved = checkpoints.saved_steps(job.checkpoint_dir)
    best = metrics.best_step(curve, saved)
    if best is None:
        met = sorted(set(saved) & set(metrics.validated_steps(logged, decisive.source)))
        if met:
            raise TrainingError(
                f"the validations of {decisive.split} at the saved steps {met} mostly were lost to infrastructure: see "
                "infra_reason in rollouts/validation.jsonl"
            )
        raise TrainingError(
            f"no checkpoint meets a validation of {decisive.split} (saved {saved}, validated "
            f"{[step for step, _ in curve]}): make train.save_every and train.validate_every meet"
        )
    step, rate = best
    policy = checkpoints.policy_dir(job.checkpoint_dir, step)
    return TrainSummary(
        steps=saved[-1],
        best_step=step,
        best_rate=rate,
        first_rate=curve[0][1] if curve[0][0] == 0 else None,
        checkpoint=str(policy.relative_to(job.run_dir)),
    )


def rollout_job(job: TrainJob) -> RolloutJob:
    """What rollout workers are told of the job."""
    return RolloutJob(
        run_id=job.run_id,
        run_dir=job.run_dir,
        data_dir=job.data_dir,
        store_dir=job.store_dir,
        model_dir=job.model_dir,
        rollout=job.rollout,
        sandbox=pooled_for(job.sandbox, job.train.rollouts_per_prompt),
        max_prompt_tokens=job.train.max_prompt_tokens,
        max_response_tokens=job.train.max_response_tokens,
        order=data_order(job),
    )


def data_order(job: TrainJob) -> DataOrder | None:
    """In which verl goes on through its rows; None when its data is overridden in ways that may change it."""
    if any(item.lstrip("+~").startswith("data.") for item in job.train.overrides):
        return None
    steps_done = checkpoints.latest_step(job.checkpoint_dir) or 0
    return DataOrder(seed=job.train.seed, batch_rows=job.train.prompts_per_step, steps_done=steps_done)


async def _run(job: TrainJob, launch: Launch, on_progress: OnProgress) -> None:
    """One start of the trainer, from launch to exit; leaves no child behind however it ends."""
    with launch.log.open("ab") as log:
        written_before = log.tell()
        process = await asyncio.create_subprocess_exec(
            *processes.bound([sys.executable, "-m", "verl.trainer.main_ppo", *launch.arguments]),
            env=os.environ | launch.environment,
            cwd=job.run_dir,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        stopped_early = await _follow(job, launch, process, on_progress)
    finally:
        await children.end(process, _GRACE_SECONDS)
        if (left := rollout_job(job).proxy.unix_socket) is not None:
            left.unlink(missing_ok=True)  # Ray kills its actors, so the run's proxy cannot remove it
    if process.returncode and not stopped_early:
        raise failure_of(process.returncode, launch.log, written_before)


async def _follow(job: TrainJob, launch: Launch, process: asyncio.subprocess.Process, on_progress: OnProgress) -> bool:
    """Report until the trainer exits; True if it was stopped because validation no longer rises."""
    held_out, train = job.held_out(), job.train
    rollouts = train.prompts_per_step * train.rollouts_per_prompt
    watch = Watch(job.run_dir, held_out, total_steps=train.steps, rollouts_per_step=rollouts)
    logged, seen_bytes = metrics.collect(job.run_dir), 0
    waiting = asyncio.ensure_future(process.wait())
    while not waiting.done():
        size = launch.metrics.stat().st_size if launch.metrics.exists() else 0
        if size != seen_bytes:
            logged, seen_bytes = metrics.collect(job.run_dir), size
            if _has_stalled(job, logged, held_out[0]):
                on_progress(
                    train.steps, train.steps, f"the resolve rate has not risen for {train.patience} validations"
                )
                waiting.cancel()
                return True
        now = watch.look(logged)
        on_progress(now.step, train.steps, now.message)
        await asyncio.wait({waiting}, timeout=_POLL_SECONDS)
    return False


def _has_stalled(job: TrainJob, logged: list[StepMetrics], decisive: HeldOut) -> bool:
    """Whether to stop now: nothing is lost, since verl saves a step before it validates it."""
    if job.train.patience is None:
        return False
    curve = read_curve(job.run_dir, logged, decisive)
    saved = checkpoints.latest_step(job.checkpoint_dir) or 0
    return metrics.has_stalled(curve, job.train.patience) and saved >= curve[-1][0]


_PERMANENT = frozenset(
    {"ConfigCompositionException", "ConfigAttributeError", "ConfigKeyError", "HydraException", "OverrideParseException"}
    | {"AssertionError", "AttributeError", "FileNotFoundError", "ModuleNotFoundError", "TypeError", "ValidationError"}
)
"""Exceptions that do not depend on the moment; anything else may be the machine's and is tried again."""

_RAISED = re.compile(
    r"^(?:\([^)]*\) )?(?P<module>[\w.]+\.)?(?P<name>\w*(?:Error|Exception|Interrupted|Refusal))(?:\(\w+\))?: "
    r"(?P<text>.*)"
)
"""The line that ends a traceback, behind Ray's prefix if it comes from a worker."""

_ERRORS = re.compile(r"agentic\.(?:\w+\.)*errors\.")
"""Where this project's exceptions are, and nothing else that is loaded with them."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_BYTES = 200_000


def _is_refusal(module: str, name: str) -> bool:
    """Whether a name in a log is of a PermanentError of this project; a worker may know one that is not loaded here."""
    if not _ERRORS.fullmatch(module):
        return False
    try:
        kind = getattr(import_module(module.removesuffix(".")), name, None)
    except ImportError:
        return False
    return isinstance(kind, type) and issubclass(kind, PermanentError)


def failure_of(returncode: int, log: Path, written_before: int) -> TrainingError | TrainingInterrupted:
    """Why the trainer ended, by what this start of it logged. What a worker of ours refused for good goes first: verl
    goes on without that rollout, and ends by something else that has come of it.

    Args:
        returncode: negative when a signal ended it.
        written_before: size of the log when it started; earlier starts wrote that.
    """
    with log.open("rb") as file:
        file.seek(max(written_before, log.stat().st_size - _TAIL_BYTES))
        lines = _COLOURS.sub("", file.read().decode(errors="replace")).splitlines()
    raised = [found for line in lines if (found := _RAISED.match(line))]
    refused = [found for found in raised if returncode > 0 and _is_refusal(found["module"] or "", found["name"])]
    decisive = refused[0] if refused else raised[-1] if raised else None
    name, text = (decisive["name"], decisive["text"]) if decisive else ("", f"exit code {returncode}")
    cause = f"{name}: {text}"[:300] if name else text
    if refused or (returncode > 0 and name in _PERMANENT):
        return TrainingError(f"verl stopped: {cause} (log: {log})")
    return TrainingInterrupted(f"the trainer went away: {cause} (log: {log}); trying again resumes from a checkpoint")
