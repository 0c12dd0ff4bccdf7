"""The program of a Ray job: it says how it ended on the volume, by its exit code and on the container's own output."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentic.files import locked_folder
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.head_job import OUTPUT_VARIABLE, HeadJob, JobFolder
from agentic.training.jobs import TrainJob, TrainSummary
from agentic.training.settings import RaySettings, TrainSettings
from steps.machine import memory_kills
from steps.on_head import explained

REPOSITORY = Path(__file__).parents[2]
SUMMARY = TrainSummary(steps=4, best_step=2, best_rate=0.5, first_rate=0.25, checkpoint="checkpoints/x")


def written(workspace: Path, **changes: Any) -> JobFolder:
    job = TrainJob(
        run_id="r",
        run_dir=workspace / "runs" / "r",
        model_dir=workspace / "models" / "tiny",
        data_dir=workspace / "datasets" / "repair",
        store_dir=workspace / "images",
        train=TrainSettings(device="cpu", gpus_per_node=1),
        ray=RaySettings(),
        rollout=RolloutSettings(),
        sandbox=BubblewrapSandbox(),
    )
    for folder in (job.model_dir, job.data_dir):
        folder.mkdir(parents=True)
    folder = JobFolder(job.run_dir, "train-r-1")
    folder.write_job(HeadJob.model_validate({"work": "train", "job": job, **changes}))
    return folder


def start(folder: JobFolder, output: Path, options: str = "") -> "subprocess.Popen[str]":
    """Through a shell in a session of its own, as Ray does."""
    return subprocess.Popen(
        folder.command + options,
        shell=True,
        start_new_session=True,
        cwd=REPOSITORY,
        env=os.environ | {OUTPUT_VARIABLE: str(output), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("changes", [{}, {"work": "evaluate", "summary": SUMMARY}])
def test_a_job_that_cannot_work_says_why_at_all_places(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder, output = written(tmp_path, **changes), tmp_path / "container"
    output.touch()
    job = start(folder, output)
    printed, _ = job.communicate(timeout=50)
    assert job.returncode == 78, printed
    result = folder.read_result()
    assert result is not None
    assert result.exit_code == 78
    assert "is no complete data set" in result.line
    assert result.line in printed
    assert "loading model" in printed
    assert output.read_text() == printed, "the container's own output has the same"


def test_a_job_that_is_not_to_be_seen_may_be_seen_by_the_next_try(tmp_path: Path) -> None:
    """Volumes show files of other machines late; that is no fault of the settings."""
    folder = written(tmp_path)
    folder.job_file.write_text(folder.job_file.read_text()[:100])
    job = start(folder, tmp_path, " --wait 0.1")
    printed, _ = job.communicate(timeout=50)
    assert job.returncode == 75, printed
    result = folder.read_result()
    assert result is not None
    assert result.exit_code == 75
    assert "mounted read-write-many" in result.line


def test_a_job_of_another_version_says_which_images_do_not_fit(tmp_path: Path) -> None:
    folder = written(tmp_path)
    content = json.loads(folder.job_file.read_text())
    folder.job_file.write_text(json.dumps({**content, "from_the_future": 1}))
    job = start(folder, tmp_path)
    printed, _ = job.communicate(timeout=50)
    assert job.returncode == 78, printed
    result = folder.read_result()
    assert result is not None
    assert "cluster.steps_image and cluster.trainer_image have to be of one release" in result.line
    assert "from_the_future" in result.line


def test_a_volume_that_takes_nothing_changes_no_exit_code(tmp_path: Path) -> None:
    """Neither a report of progress nor the result can be written; both names are taken by folders."""
    folder = written(tmp_path)
    for name in ("progress.json", "result.json"):
        (folder.job_file.parent / name).mkdir()
    job = start(folder, tmp_path)
    with locked_folder(tmp_path / "datasets" / "repair", lambda: None, exclusive=True):
        assert job.stdout is not None
        while "waiting for another run" not in (line := job.stdout.readline()):
            assert line, "it ended"
    printed, _ = job.communicate(timeout=50)
    assert job.returncode == 78, printed
    assert "is no complete data set" in printed
    assert "this cannot be written to the volume: Is a directory" in printed


def test_jobs_of_one_run_work_one_after_the_other(tmp_path: Path) -> None:
    folder = written(tmp_path)
    job = start(folder, tmp_path)
    with locked_folder(tmp_path / "runs" / "r" / "jobs", lambda: None, exclusive=True):
        deadline = time.monotonic() + 50
        while (progress := folder.read_progress()) is None or "another job of this run" not in progress.message:
            assert time.monotonic() < deadline, progress
            time.sleep(0.05)
        assert job.poll() is None
    printed, _ = job.communicate(timeout=50)
    assert "is no complete data set" in printed


def test_a_job_that_is_told_to_end_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path)
    job = start(folder, tmp_path / "there" / "is" / "none")
    with locked_folder(tmp_path / "datasets" / "repair", lambda: None, exclusive=True):
        deadline = time.monotonic() + 50
        while (progress := folder.read_progress()) is None or "waiting for another run" not in progress.message:
            assert time.monotonic() < deadline, progress
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGTERM)
        printed, _ = job.communicate(timeout=50)
    assert job.returncode == 143, printed
    result = folder.read_result()
    assert result is not None
    assert result.exit_code == 143
    assert "cannot be written" in printed, "an output that is not there is no reason to fail"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_for_memory_are_counted_and_told(tmp_path: Path, name: str, text: str) -> None:
    """By either version of control groups, in the kernel's own words."""
    assert memory_kills(tmp_path) == 0
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert memory_kills(tmp_path) == 2
    assert explained("the trainer went away", 0) == "the trainer went away"
    assert "raise cluster.head.memory" in explained("the trainer went away", 2)
