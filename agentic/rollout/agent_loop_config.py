"""What a rollout worker has to know about its run, as one JSON file.

The training job writes it and puts its path into the environment variable `AGENTIC_ROLLOUT_CONFIG`; verl's agent loop
workers, which are made by verl and take no arguments of ours, read it there.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from agentic.proxy import ProxySettings
from agentic.rollout.data_order import DataOrder
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.proxy_socket import proxy_settings
from agentic.rollout.records import Phase
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox, SandboxSettings
from agentic.settings import Settings
from agentic.tasks.manifest import read_manifest
from agentic.tasks.splits import TRAIN

CONFIG_VARIABLE = "AGENTIC_ROLLOUT_CONFIG"
"""The environment variable that holds the file's path."""


class RolloutJob(Settings):
    """One run's rollouts: where things are, and how they are done. Paths are absolute, on this machine."""

    run_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Names the run's actors and its sandboxes."""
    run_dir: Path
    """Records and kept trials go below it."""
    data_dir: Path
    """The data set: `manifest.json` and `tasks/<task>/`."""
    store_dir: Path
    """The root-folder store that sandboxes mount."""
    model_dir: Path
    """The policy's folder; its tokenizer is the proxy's."""
    rollout: RolloutSettings = RolloutSettings()
    """The agent, the clock, retries, the reward, the proxy."""
    sandbox: SandboxSettings = BubblewrapSandbox()
    """Where the agent's commands and the tests run."""
    max_prompt_tokens: int = Field(ge=1)
    """verl's `data.max_prompt_length`."""
    max_response_tokens: int = Field(ge=1)
    """verl's `data.max_response_length`."""
    order: DataOrder | None = None
    """In which verl trains on the rows; None is not known, and taken to be the data set's."""

    @property
    def trials_dir(self) -> Path:
        """Where trials that are kept leave their folders."""
        return self.run_dir / "trials"

    @property
    def proxy(self) -> ProxySettings:
        """What the run's proxy is started with, the same in every process."""
        return proxy_settings(self.rollout, self.sandbox, str(self.run_dir), "train")

    def expected_tasks(self) -> tuple[Path, ...]:
        """Folders of all tasks in the order in which a run comes to them: a new one validates before it trains, one
        that goes on from a checkpoint trains, on rows that verl shuffles. None where the data set does not say what it
        holds."""
        manifest = read_manifest(self.data_dir)
        splits = {} if manifest is None else manifest.splits
        held_out = [task for split, tasks in splits.items() if split != TRAIN for task in tasks]
        train: Sequence[str] = splits.get(TRAIN, ())
        if self.order is not None:
            train = tuple(train[row] for row in self.order.rows(len(train)))
        is_resumed = any((self.run_dir / "checkpoints").glob("global_step_*"))
        return tuple(self.task_dir(task) for task in ((*train, *held_out) if is_resumed else (*held_out, *train)))

    def task_dir(self, task: str) -> Path:
        """A task's folder in Harbor's format."""
        return self.data_dir / "tasks" / task


def phase_of(split: str) -> Phase:
    """What a training run's rollout of `split` is for. verl does not tell an agent loop whether it runs for training or
    validation; the row's split does, since no split is used for both."""
    return Phase.TRAIN if split == TRAIN else Phase.VALIDATION


def load_job() -> RolloutJob:
    """The job of this process, from the file that the environment names."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        raise RolloutConfigError(f"{CONFIG_VARIABLE} is not set: the training job must name its rollout configuration")
    try:
        return RolloutJob.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise RolloutConfigError(f"{CONFIG_VARIABLE}={path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RolloutConfigError(f"{path}: {where}: {first['msg']}") from error
