"""SWE-bench Verified through Harbor's download command.

The command is run until every task is there; what arrived stays in the download folder between attempts and between
steps, so a second try fetches what is missing only. A task counts when its folder is a whole Harbor task; what a killed
command left of one is removed before the next. What would fetch its grader is graded as rows are (see
`swebench_export.py`). The split holds out the same share of every repository; seed, ids and each task's digest are in
the data set's manifest.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from agentic.tasks.errors import DataError, DownloadIncomplete
from agentic.tasks.harbor_format import CONFIG, INSTRUCTION, TEST, TaskFolder, is_task, read_task
from agentic.tasks.prepare import OnProgress
from agentic.tasks.settings import SweBenchData
from agentic.tasks.splits import split_evenly
from agentic.tasks.swebench_export import graded_here


def download_tasks(settings: SweBenchData, folder: Path, on_progress: OnProgress) -> dict[str, list[TaskFolder]]:
    """Split → tasks, once all of them are there."""
    if settings.train >= settings.tasks:
        raise DataError(f"data.train is {settings.train} of data.tasks {settings.tasks}: leave tasks to validate on")
    folder.mkdir(parents=True, exist_ok=True)
    reason = "nothing was run"
    for attempt in range(1, settings.attempts + 1):
        found = _whole_tasks(folder)
        on_progress(min(len(found), settings.tasks), settings.tasks, f"{len(found)} of {settings.tasks} tasks")
        if len(found) >= settings.tasks:
            break
        _remove_parts(folder)
        reason = _run(settings, folder)
        found = _whole_tasks(folder)
        on_progress(
            min(len(found), settings.tasks),
            settings.tasks,
            f"{len(found)} of {settings.tasks} tasks after attempt {attempt}",
        )
    if len(found) < settings.tasks:
        raise DownloadIncomplete(f"{settings.tasks - len(found)} of {settings.tasks} tasks are missing ({reason})")
    if len(found) > settings.tasks:
        raise DataError(f"{len(found)} tasks arrived, data.tasks says {settings.tasks}: set it to what is right")
    tasks = {path.name: graded_here(read_task(path)) for path in found}
    split = split_evenly(tasks, settings.tasks - settings.train, settings.seed, repository_of)
    return {name: [tasks[task_id] for task_id in ids] for name, ids in split.items()}


def repository_of(task_id: str) -> str:
    """`django__django` of `django__django-11099`."""
    return task_id.rpartition("-")[0] or task_id


def _run(settings: SweBenchData, folder: Path) -> str:
    """One run of the command; what it says at the end, in one line, in case tasks are still missing."""
    command = [*settings.command, "--output-dir", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=settings.timeout_seconds, check=False
        )
    except FileNotFoundError as error:
        raise DataError(f"data.command {settings.command[0]!r} was not found: install it or set the command") from error
    except subprocess.TimeoutExpired:
        return f"the command took longer than {settings.timeout_seconds:.0f} s"
    lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
    return f"exit {done.returncode}: {lines[-1][:200]}"


def _whole_tasks(folder: Path) -> Sequence[Path]:
    """Task folders in the download folder, or in the one of the data set's name that the command makes there; no
    deeper: a command that was killed leaves the task that it was copying in a folder for that."""
    found = [path.parent for pattern in (f"*/{CONFIG}", f"*/*/{CONFIG}") for path in sorted(folder.glob(pattern))]
    return list({path.name: path for path in found if _is_whole(path)}.values())


def _is_whole(task: Path) -> bool:
    return all((task / name).is_file() for name in (CONFIG, INSTRUCTION, TEST))


def _remove_parts(folder: Path) -> None:
    """What a command that was killed left of a task: the next one would take any folder of that name for the task."""
    places = [place for place in folder.iterdir() if place.is_dir() and not _is_whole(place)]
    for place in places:
        parts = [place] if is_task(place) else [part for part in place.iterdir() if not _is_whole(part)]
        for part in (part for part in parts if part.is_dir()):
            shutil.rmtree(part, ignore_errors=True)
