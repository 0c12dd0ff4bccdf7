"""Trains the policy with verl on Ray; a second try goes on from the last whole checkpoint.

In a cluster the work is a Ray job in the head's pod (`steps.ray_head`), which this step submits, follows, and finds
again when its own pod was lost.
"""

import asyncio
from typing import TYPE_CHECKING, ClassVar

from agentic.errors import TransientError
from steps import contract
from steps.command import main
from steps.contract import Step, StepOutput
from steps.shared_folders import reading
from steps.training_input import TrainingInput, training_job

if TYPE_CHECKING:
    from agentic.training.jobs import TrainJob, TrainSummary


class TrainInput(TrainingInput):
    """A policy, tasks, and how to train on them."""

    STEP: ClassVar[str] = "train"


class TrainOutput(StepOutput):
    """Where training ended."""

    steps: int
    """The last saved step."""
    best_step: int
    """The step whose validation was best."""
    best_rate: float
    """Resolve rate at that step."""
    first_rate: float | None
    """Resolve rate before training, when it was measured."""
    checkpoint: str
    """Folder of the best policy, relative to the run's."""


def run(inputs: TrainInput) -> TrainOutput:
    """Train to the last step, or until validation stops rising."""
    return contract.execute(inputs, _train, TrainOutput)


def _train(inputs: TrainInput, step: Step) -> TrainOutput:
    job = training_job(inputs, step)
    with reading(step, inputs.data_dir, inputs.model_dir):
        summary = _on_cluster(inputs, job, step) if step.on_argo else _here(job, step)
    return TrainOutput(**summary.model_dump())


def _here(job: "TrainJob", step: Step) -> "TrainSummary":
    from agentic.training.job import train

    return asyncio.run(train(job, step.progress))


def _on_cluster(inputs: TrainInput, job: "TrainJob", step: Step) -> "TrainSummary":
    from agentic.training.head_job import HeadJob
    from steps.ray_head import work_on_head

    ended = work_on_head(inputs.cluster, HeadJob(work="train", job=job), step)
    if ended.trained is None:
        raise TransientError("training has ended but did not say where it stands: trying again reads its checkpoints")
    return ended.trained


if __name__ == "__main__":
    raise SystemExit(main(TrainInput, run))
