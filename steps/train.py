"""Trains the policy with verl on Ray; a second try goes on from the last whole checkpoint."""

import asyncio
from typing import ClassVar

from steps import contract
from steps.command import main
from steps.contract import Step, StepOutput
from steps.shared_folders import reading
from steps.training_input import TrainingInput, training_job


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
    from agentic.training.job import train

    with reading(step, inputs.data_dir, inputs.model_dir):
        summary = asyncio.run(train(training_job(inputs, step), step.progress))
    return TrainOutput(**summary.model_dump())


if __name__ == "__main__":
    raise SystemExit(main(TrainInput, run))
