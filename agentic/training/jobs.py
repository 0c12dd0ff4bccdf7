"""What a training job is given and what it leaves: the models shared by training, evaluation and the steps."""

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from agentic.errors import PermanentError
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import SandboxSettings
from agentic.tasks.manifest import Manifest, read_manifest
from agentic.tasks.splits import TRAIN
from agentic.training.settings import RaySettings, TrainSettings


class TrainJob(BaseModel):
    """Everything `train` and `evaluate` need; paths are absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    run_dir: Path
    model_dir: Path
    data_dir: Path
    store_dir: Path
    train: TrainSettings
    ray: RaySettings
    rollout: RolloutSettings
    sandbox: SandboxSettings

    @property
    def workspace(self) -> Path:
        """The root of what the run reads and writes: `run_dir` is `<workspace>/runs/<run_id>`."""
        return self.run_dir.parents[1]

    @property
    def checkpoint_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def train_file(self) -> Path:
        return self.data_dir / "train.parquet"

    def manifest(self) -> Manifest:
        """What the data set says about itself.

        Raises:
            PermanentError: the data set is incomplete.
        """
        manifest = read_manifest(self.data_dir)
        if manifest is None:
            raise PermanentError(f"{self.data_dir} is no complete data set: run the step download_data first")
        return manifest

    def held_out(self) -> "list[HeldOut]":
        """The validation splits, the one that decides which checkpoint is best first.

        Raises:
            PermanentError: the data set is incomplete or has no validation split.
        """
        manifest = self.manifest()
        splits = [
            HeldOut(split, tuple(tasks), f"{manifest.name}/{split}", self.data_dir / "validation" / f"{split}.parquet")
            for split, tasks in manifest.splits.items()
            if split != TRAIN and tasks
        ]
        if not splits:
            raise PermanentError(f"{self.data_dir} has no validation split: set the data section's held-out counts")
        return splits


class HeldOut(NamedTuple):
    """One validation split."""

    split: str
    tasks: tuple[str, ...]
    source: str
    """verl's `data_source`, under which it logs the split's metrics."""
    file: Path


class TrainSummary(BaseModel):
    """Where training ended."""

    model_config = ConfigDict(frozen=True)

    steps: int
    best_step: int
    best_rate: float
    first_rate: float | None
    checkpoint: str
    """Folder of the best checkpoint's Hugging Face export, relative to the run's folder."""


class Rate(BaseModel):
    """Resolved over graded; rollouts lost to infrastructure are in neither."""

    model_config = ConfigDict(frozen=True)

    resolved: int
    graded: int
    infra: int
    rate: float | None


class SplitEvaluation(BaseModel):
    """One held-out split."""

    model_config = ConfigDict(frozen=True)

    before: Rate
    after: Rate


class EvaluationSummary(BaseModel):
    """`runs/<run-id>/evaluation.json`."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str
    checkpoint_step: int
    seconds: float
    splits: dict[str, SplitEvaluation]
