"""Says what is wrong with tasks: what lies in their folders, whether their images build, and what two trials show.

The reference solution must earn 1.0 and an untouched sandbox 0.0. A task is `good`, `bad` with its problems one line
each, or `unjudged` when trials were lost to something other than the task; only the first two say anything about it.
"""

import asyncio
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agentic.authoring.trying import TaskTrials, Trying, task_trials
from agentic.rollout.grading.time_limits import seconds_for
from agentic.sandbox.settings import SandboxSettings
from agentic.tasks.errors import DataError
from agentic.tasks.findings import find_problems
from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, is_task

GRADING_SECONDS = 600.0
"""For tests whose task sets no time."""

NAMED_IMAGE = (
    "environment.docker_image lies in a registry, which sandboxes here cannot start: add environment/Dockerfile"
)

type OnTask = Callable[[int, int, str], None]
"""Called with (done, total, task's name)."""


class TaskReport(BaseModel):
    """The verdict on one task."""

    model_config = ConfigDict(frozen=True)

    task: str
    """The folder as it was given."""
    verdict: Literal["good", "bad", "unjudged"]
    reference: float | None = None
    """Reward of the reference solution; None when it was not run or gave none."""
    empty: float | None = None
    """Reward of an untouched sandbox."""
    problems: tuple[str, ...] = ()


def find_tasks(folders: Sequence[Path]) -> list[Path]:
    """Each folder that is a task or looks like one, or else its direct subfolders that are."""
    found: list[Path] = []
    for folder in folders:
        nested = [path for path in sorted(folder.iterdir()) if is_task(path)] if folder.is_dir() else []
        found += nested if nested and not is_task(folder) else [folder]
    names = [path.resolve().name for path in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"several folders are called {', '.join(twice)}: a task's id is its folder's name, rename one")
    return [path.resolve() for path in found]


async def check_tasks(
    tasks: Sequence[Path],
    store_dir: Path,
    sandbox: SandboxSettings,
    *,
    concurrency: int = 2,
    on_task: OnTask = lambda done, total, name: None,
) -> list[TaskReport]:
    """One report for each task, in their order. Those whose folder is faulty are not run."""
    faulty = {task: problems for task in tasks if (problems := await asyncio.to_thread(find_problems, task))}
    sound = [task for task in tasks if task not in faulty]
    reports = {task: TaskReport(task=task.name, verdict="bad", problems=tuple(found)) for task, found in faulty.items()}
    if sound:
        gate = asyncio.Semaphore(concurrency)
        async with task_trials(sound, store_dir, sandbox, concurrency) as (trials, broken):

            async def check(task: Path) -> None:
                async with gate:
                    reports[task] = await _run(task, trials, broken.get(task.name))
                on_task(len(reports), len(tasks), task.name)

            await asyncio.gather(*(check(task) for task in sound))
    return [reports[task] for task in tasks]


async def _run(task: Path, trials: TaskTrials, broken: str | None) -> TaskReport:
    if broken is not None:
        return TaskReport(task=task.name, verdict="bad", problems=(f"the image cannot be built here: {broken}",))
    if not (task / DOCKERFILE).is_file():
        return TaskReport(task=task.name, verdict="unjudged", problems=(NAMED_IMAGE,))
    seconds = grading_seconds(task)
    reference, empty = await trials.reference(task, seconds), await trials.empty(task, seconds)
    problems = [
        *_judge("the reference solution", reference, 1.0),
        *_judge("an untouched sandbox", empty, 0.0),
    ]
    lost = [line for line in (reference.lost, empty.lost) if line]
    verdict: Literal["good", "bad", "unjudged"] = "bad" if problems else "unjudged" if lost else "good"
    return TaskReport(
        task=task.name,
        verdict=verdict,
        reference=reference.reward,
        empty=empty.reward,
        problems=(*problems, *(f"a trial was lost twice, which says nothing about the task: {line}" for line in lost)),
    )


def grading_seconds(task: Path) -> float:
    """What grading needs, for tests to have what the task gives them."""
    verifier = tomllib.loads((task / CONFIG).read_text(encoding="utf-8")).get("verifier", {})
    return seconds_for(float(verifier.get("timeout_sec", GRADING_SECONDS)))


def _judge(who: str, trying: Trying, wanted: float) -> list[str]:
    if trying.fault:
        return [f"{who}: {trying.fault}{_last_line(trying.output)}"]
    if trying.reward is None or trying.reward == wanted:
        return []
    return [f"{who} earns {trying.reward:g} and must earn {wanted:g}{_last_line(trying.output)}"]


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f" (the tests end with: {lines[-1][:160]})" if lines else ""
