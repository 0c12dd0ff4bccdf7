"""A local folder of Harbor tasks as a data source."""

from pathlib import Path

from agentic.tasks.errors import DataError
from agentic.tasks.harbor_format import TaskFolder, is_task, read_task
from agentic.tasks.settings import FolderData
from agentic.tasks.splits import split_ids


def read_folder(settings: FolderData) -> dict[str, list[TaskFolder]]:
    """Split → tasks, from the subfolders that hold a `task.toml`."""
    root = Path(settings.path)
    if not root.is_dir():
        raise DataError(f"data.path {settings.path} is no folder: give a folder whose subfolders are Harbor tasks")
    tasks = read_tasks(root)
    if not tasks:
        raise DataError(f"data.path {settings.path} has no subfolder with a task.toml: give a folder of Harbor tasks")
    held_out = round(len(tasks) * settings.held_out_fraction)
    return split_tasks(tasks, held_out, settings.seed)


def read_tasks(root: Path) -> dict[str, TaskFolder]:
    """Id → task, for each direct subfolder that is a task."""
    return {folder.name: read_task(folder) for folder in sorted(root.iterdir()) if is_task(folder)}


def split_tasks(tasks: dict[str, TaskFolder], held_out: int, seed: int) -> dict[str, list[TaskFolder]]:
    if held_out >= len(tasks):
        raise DataError(f"{held_out} of {len(tasks)} tasks would be held out: none is left to train on")
    return {split: [tasks[task_id] for task_id in ids] for split, ids in split_ids(tasks, held_out, seed).items()}
