"""Harbor's trials without reading a task's whole folder three times for each of them.

Harbor hashes the folder when a trial is made, for `lock.json`, and again, in another way, for `result.json`: a third of
all the processor time that a trial takes in this process, and the longest step on the event loop. A sixth goes into
reading `task.toml` and asking which files the folder's `.harborignore` leaves. A training run makes thousands of trials
of each task. Here all of it is that of the folder as it was last read, and it is read again when a file in it has
another size, mode or time of change. Of the most recent folders and, in each, configurations: a server's tasks come and
go. Each trial has a task of its own, whose configuration it may change.

Harbor has no public place for a digest that is known, so `_task` and `_write_trial_lock` are Harbor's own; a test holds
what comes out to what Harbor itself writes, so that another version of it cannot differ unseen.
"""

import copy
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, override

from harbor.models.job.lock import TrialLock
from harbor.models.task.file_filter import TaskFileFilter
from harbor.models.task.task import Task
from harbor.models.trial.config import TrialConfig
from harbor.tasks.client import TaskDownloadResult
from harbor.trial.single_step import SingleStepTrial
from harbor.trial.trial import Trial, check_trial_config
from harbor.utils.file_selection import FileSelection

from agentic.rollout.errors import GradingSetupError
from agentic.tasks.grading_policy import STEPS_IN_PLACE, read_policy

_log = logging.getLogger(__name__)

type State = tuple[tuple[str, int, int, int], ...]
"""(path, mode, size, time of change) of each file."""

FOLDERS, _LOCKS = 2048, 16
"""Kept at most: of folders, and of each folder's locks, one for every configuration of agent and environment."""

_OWN_FIELDS = {"trial_name", "trials_dir", "job_id"}
"""Of a trial's configuration: what two trials with the same lock may differ in."""


@dataclass(slots=True)
class _Known:
    """What was read of one folder."""

    state: State
    task: "_KnownTask"
    checksum: str | None = None
    locks: dict[str, TrialLock] = field(default_factory=dict)


class KnownTasks:
    """The folders that trials of a process were made from."""

    def __init__(self, most_folders: int = FOLDERS) -> None:
        self._most_folders = most_folders
        self._known: dict[Path, _Known] = {}

    async def make_trial(self, config: TrialConfig) -> Trial:
        """As `Trial.create`, for a task in a folder of this machine. Raises what that raises, and GradingSetupError for
        a task of several steps that does not say that it is graded where the agent was."""
        folder = config.task.path
        if config.verifier.disable:
            return await Trial.create(config)
        known = self._look(folder)
        if known.task.has_steps:
            if read_policy(folder).mode == "fresh":
                raise GradingSetupError(STEPS_IN_PLACE)
            return await Trial.create(config)
        task = known.task.for_trial(known)
        for warning in check_trial_config(task.config, config.environment, config.verifier):
            _log.warning("task %s: %s", task.name, warning)
        return _KnownTrial(
            config,
            _task=task,
            _task_download_result=TaskDownloadResult(path=folder, download_time_sec=0.0, cached=True),
        )

    def _look(self, folder: Path) -> _Known:
        state = tuple(sorted(_files(folder, "")))
        known = self._known.get(folder)
        if known is None or known.state != state:
            known = _Known(state, _KnownTask(task_dir=folder))
        self._known.pop(folder, None)
        self._known[folder] = known  # The latest is the last.
        _keep(self._known, self._most_folders)
        return known


def _keep[K, V](known: dict[K, V], most: int) -> None:
    """The latest; a dictionary has its items in the order in which they came."""
    while len(known) > most:
        del known[next(iter(known))]


def _files(folder: Path | str, prefix: str) -> Iterator[tuple[str, int, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{name}/")
            else:
                yield name, status.st_mode, status.st_size, status.st_ctime_ns


class _KnownFilter(TaskFileFilter):  # type: ignore[misc]
    """Answers for a folder that has not changed."""

    def __init__(self, task_dir: Path) -> None:
        super().__init__(task_dir)
        self._included: set[Path] = set()
        self._selected: dict[Path, FileSelection] = {}

    @override
    def require_included(self, path: Path) -> None:
        if path not in self._included:
            super().require_included(path)
            self._included.add(path)

    @override
    def select(self, source_dir: Path) -> FileSelection:
        if source_dir not in self._selected:
            self._selected[source_dir] = super().select(source_dir)
        return self._selected[source_dir]


class _KnownTask(Task):  # type: ignore[misc]
    known: _Known

    def __init__(self, task_dir: Path) -> None:
        super().__init__(task_dir)
        self.file_filter = _KnownFilter(self.paths.task_dir)

    def for_trial(self, known: _Known) -> Self:
        """One that can be changed without changing this."""
        task = copy.copy(self)
        task.config, task.known = self.config.model_copy(deep=True), known
        return task

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
            _keep(locks, _LOCKS)
        else:
            self.paths.lock_path.write_text(locks[key].model_dump_json(indent=4, exclude_none=True))
        return locks[key]
