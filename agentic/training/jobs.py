"""What a training job is given and what it leaves: the models shared by training, evaluation and the steps."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentic.errors import PermanentError
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import SandboxSettings
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
    def checkpoint_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def train_file(self) -> Path:
        return self.data_dir / "train.parquet"

    def validation_files(self) -> dict[str, Path]:
        """Parquet file of each validation split, the one that decides which checkpoint is best first.

        Raises:
            PermanentError: the data set has no manifest or no validation split.
        """
        manifest: dict[str, Any] = read_manifest(self.data_dir)
        names = [name for name in manifest["splits"] if name != manifest["train_split"]]
        if not names:
            raise PermanentError(f"{self.data_dir} has no validation split: set the data section's held-out counts")
        return {name: self.data_dir / "validation" / f"{name.rpartition('/')[2]}.parquet" for name in names}


class TrainSummary(BaseModel):
    """Where training ended."""

    model_config = ConfigDict(frozen=True)

    steps: int
    best_step: int
    best_rate: float
    first_rate: float | None
    checkpoint: str
    """Folder of the best checkpoint's Hugging Face export, relative to the run's folder."""


def read_manifest(data_dir: Path) -> dict[str, Any]:
    """A data set's manifest.

    Raises:
        PermanentError: there is none.
    """
    path = data_dir / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise PermanentError(f"{path} is missing: run the step download_data first") from error
    return manifest
