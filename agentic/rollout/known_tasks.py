"""Harbor's trials without reading a task's whole folder twice for each of them.

Harbor hashes the folder when a trial is made, for `lock.json`, and again, in another way, for `result.json`: a third of
all the processor time that a trial takes in this process, and the longest step on the event loop. A training run makes
thousands of trials of each task. Here both digests are those of the folder as it was last read, and it is read again
when a file in it has another size, mode or time of change.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import override

from harbor.models.job.lock import TrialLock
from harbor.models.task.task import Task
from harbor.models.trial.config import TrialConfig
from harbor.tasks.client import TaskDownloadResult
from harbor.trial.single_step import SingleStepTrial
from harbor.trial.trial import Trial, check_trial_config

_log = logging.getLogger(__name__)

type State = tuple[tuple[str, int, int, int], ...]
"""(path, mode, size, time of change) of each file."""

_OWN_FIELDS = {"trial_name", "trials_dir", "job_id"}
"""Of a trial's configuration: what two trials with the same lock may differ in."""


@dataclass(slots=True)
class _Known:
    """What was read of one folder."""

    state: State
    checksum: str | None = None
    locks: dict[str, TrialLock] = field(default_factory=dict)


class KnownTasks:
    """The folders that trials of a process were made from."""

    def __init__(self) -> None:
        self._known: dict[Path, _Known] = {}

    async def make_trial(self, config: TrialConfig) -> Trial:
        """As `Trial.create`, for a task in a folder of this machine. Raises what that raises."""
        folder = config.task.path
        task = _KnownTask(task_dir=folder, disable_verification=config.verifier.disable)
        if task.has_steps:
            return await Trial.create(config)
        for warning in check_trial_config(task.config, config.environment, config.verifier):
            _log.warning("task %s: %s", task.name, warning)
        task.known = self._look(folder)
        return _KnownTrial(
            config,
            _task=task,
            _task_download_result=TaskDownloadResult(path=folder, download_time_sec=0.0, cached=True),
        )

    def _look(self, folder: Path) -> _Known:
        state = tuple(sorted(_files(folder, "")))
        known = self._known.get(folder)
        if known is None or known.state != state:
            known = self._known[folder] = _Known(state)
        return known


def _files(folder: Path | str, prefix: str) -> Iterator[tuple[str, int, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{name}/")
            else:
                yield name, status.st_mode, status.st_size, status.st_ctime_ns


class _KnownTask(Task):  # type: ignore[misc]
    known: _Known

    @property
    @override
    def checksum(self) -> str:
        if self.known.checksum is None:
            self.known.checksum = str(super().checksum)
        return self.known.checksum


class _KnownTrial(SingleStepTrial):  # type: ignore[misc]
    @override
    def _write_trial_lock(self) -> TrialLock:
        locks = self.task.known.locks
        key = self.config.model_dump_json(exclude=_OWN_FIELDS)
        if key not in locks:
            locks[key] = super()._write_trial_lock()
        else:
            self.paths.lock_path.write_text(locks[key].model_dump_json(indent=4, exclude_none=True))
        return locks[key]
