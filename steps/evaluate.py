"""Measures the best checkpoint against the starting policy on every held-out split.

In a cluster the engine and the rollouts run in the head's pod, as a Ray job like training itself.
"""

import asyncio
from typing import TYPE_CHECKING, ClassVar

from agentic.errors import PermanentError, TransientError
from steps import contract
from steps.command import main
from steps.contract import Step, StepOutput
from steps.markers import newest_outputs
from steps.shared_folders import reading
from steps.training_input import TrainingInput, training_job

if TYPE_CHECKING:
    from agentic.training.jobs import EvaluationSummary, TrainJob, TrainSummary


class EvaluateInput(TrainingInput):
    """What was trained, and on what."""

    STEP: ClassVar[str] = "evaluate"

    checkpoint: str = ""
    """Folder of the policy that training found best, relative to the run's; empty = the newest of this run."""


class EvaluateOutput(StepOutput):
    """Resolve rates on the first held-out split; all splits are in `evaluation.json`."""

    split: str
    """The split whose rates follow."""
    before: float | None
    """Resolve rate of the starting policy; `None` when no rollout of it could be graded."""
    after: float | None
    """Resolve rate of the checkpoint."""
    checkpoint: str
    """Folder of the policy, relative to the workspace."""
    evaluation: str
    """The file with all splits, relative to the workspace."""

    def artifacts(self) -> list[str]:
        return [self.evaluation, self.checkpoint]


def run(inputs: EvaluateInput) -> EvaluateOutput:
    """Evaluate before and after."""
    return contract.execute(inputs, _evaluate, EvaluateOutput)


def _evaluate(inputs: EvaluateInput, step: Step) -> EvaluateOutput:
    from agentic.training.jobs import TrainSummary

    trained = newest_outputs(step.workspace.run_dir, "train")
    if trained is None or inputs.checkpoint not in ("", trained["checkpoint"]):
        raise PermanentError(f"training of run {step.workspace.run_id} has not ended: run the step train first")
    summary = TrainSummary.model_validate(trained)
    with reading(step, inputs.data_dir, inputs.model_dir):
        job = training_job(inputs, step)
        result = _on_cluster(inputs, job, summary, step) if step.on_argo else _here(job, summary, step)
    split, rates = next(iter(result.splits.items()))
    return EvaluateOutput(
        split=split,
        before=rates.before.rate,
        after=rates.after.rate,
        checkpoint=step.workspace.relative(step.workspace.run_dir / summary.checkpoint),
        evaluation=step.workspace.relative(step.workspace.run_dir / "evaluation.json"),
    )


def _here(job: "TrainJob", summary: "TrainSummary", step: Step) -> "EvaluationSummary":
    from agentic.training.evaluate import evaluate

    return asyncio.run(evaluate(job, summary, step.progress))


def _on_cluster(inputs: EvaluateInput, job: "TrainJob", summary: "TrainSummary", step: Step) -> "EvaluationSummary":
    from agentic.training.head_job import HeadJob
    from steps.ray_head import work_on_head

    ended = work_on_head(inputs.cluster, HeadJob(work="evaluate", job=job, summary=summary), step)
    if ended.evaluated is None:
        raise TransientError("evaluation has ended but did not say what it measured: trying again reads its rollouts")
    return ended.evaluated


if __name__ == "__main__":
    raise SystemExit(main(EvaluateInput, run))
