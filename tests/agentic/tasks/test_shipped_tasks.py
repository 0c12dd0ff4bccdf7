"""Every shipped task: broken as it is, whole with its solution, and readable by Harbor."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.models.task.task import Task

from agentic.tasks.harbor_format import read_task
from agentic.tasks.packed import packed

ROOT = Path(__file__).parents[3] / "tasks"
FOLDERS = sorted(path for path in ROOT.iterdir() if (path / "task.toml").is_file())


def run(script: Path, app: Path, logs: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "APP": str(app), "TESTS": str(script.parent), "LOGS": str(logs)}
    return subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_there_are_a_dozen() -> None:
    assert len(FOLDERS) >= 12


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_task_fails_as_it_is_and_passes_with_its_solution(folder: Path, tmp_path: Path) -> None:
    app, logs = tmp_path / "app", tmp_path / "logs"
    shutil.copytree(folder / "environment/app", app)
    broken = run(folder / "tests/test.sh", app, logs)
    assert (logs / "reward.txt").read_text() == "0\n", broken.stderr
    assert "Ran " in broken.stderr, "the tests must run and fail, not crash"
    assert run(folder / "solution/solve.sh", app, logs).returncode == 0
    solved = run(folder / "tests/test.sh", app, logs)
    assert (logs / "reward.txt").read_text() == "1\n", solved.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_task_is_in_harbors_format_and_of_a_real_size(folder: Path) -> None:
    task = Task(folder)
    assert read_task(folder).instruction == task.instruction.strip()
    sources = [path.read_text() for path in (folder / "environment/app").iterdir()]
    assert len(sources) >= 2
    assert 20 <= sum(text.count("\n") for text in sources) <= 160


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_tasks_judge_is_the_one_of_this_project(folder: Path, golden: Callable[..., None]) -> None:
    golden(folder / "tests/judge.py", packed("unittest_judge.py").decode())
