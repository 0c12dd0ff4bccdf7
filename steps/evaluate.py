"""Measures the best checkpoint against the starting policy on every held-out split."""

import asyncio
from typing import ClassVar

from agentic.errors import PermanentError
from steps import contract
from steps.command import main
from steps.contract import Step, StepOutput
from steps.markers import newest_outputs
from steps.shared_folders import reading
from steps.training_input import TrainingInput, training_job


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
    from agentic.training.evaluate import evaluate
    from agentic.training.jobs import TrainSummary

    trained = newest_outputs(step.workspace.run_dir, "train")
    if trained is None or inputs.checkpoint not in ("", trained["checkpoint"]):
        raise PermanentError(f"training of run {step.workspace.run_id} has not ended: run the step train first")
    summary = TrainSummary.model_validate(trained)
    with reading(step, inputs.data_dir, inputs.model_dir):
        result = asyncio.run(evaluate(training_job(inputs, step), summary, step.progress))
    split, rates = next(iter(result.splits.items()))
    return EvaluateOutput(
        split=split,
        before=rates.before.rate,
        after=rates.after.rate,
        checkpoint=step.workspace.relative(step.workspace.run_dir / summary.checkpoint),
        evaluation=step.workspace.relative(step.workspace.run_dir / "evaluation.json"),
    )


if __name__ == "__main__":
    raise SystemExit(main(EvaluateInput, run))
