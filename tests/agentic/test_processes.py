"""A run's processes are found by run id and workspace and ended for good; nobody else's are touched."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agentic import processes

DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\nelse:\n    time.sleep(300)"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(300)"


@pytest.fixture
def run_id(tmp_path: Path) -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    yield name
    processes.end(name, tmp_path, grace_seconds=0)


def start(run_id: str, workspace: Path, code: str) -> subprocess.Popen[str]:
    environment = os.environ | processes.marks(run_id, workspace)
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(run_id: str, workspace: Path, count: int) -> None:
    deadline = time.monotonic() + 10
    while len(found := processes.find(run_id, workspace)) != count:
        assert time.monotonic() < deadline, f"{found} of run {run_id}, expected {count}"
        time.sleep(0.05)


def test_a_daemon_that_left_its_session_is_ended_too(tmp_path: Path, run_id: str) -> None:
    with start(run_id, tmp_path, DAEMON):
        wait_for(run_id, tmp_path, 2)

        assert processes.end(run_id, tmp_path) == 2

    assert processes.find(run_id, tmp_path) == []


def test_a_process_that_ignores_the_polite_signal_is_killed(tmp_path: Path, run_id: str) -> None:
    with start(run_id, tmp_path, DEAF) as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == "deaf\n"

        processes.end(run_id, tmp_path, grace_seconds=0.2)

        assert deaf.wait(5) < 0


def test_ending_twice_is_safe_and_another_run_is_left_alone(tmp_path: Path, run_id: str) -> None:
    other = f"{run_id}-other"
    with start(other, tmp_path, "import time\ntime.sleep(300)") as neighbour:
        wait_for(other, tmp_path, 1)

        assert processes.end(run_id, tmp_path) == 0
        assert processes.end(run_id, tmp_path) == 0
        assert neighbour.poll() is None

        assert processes.end(other, tmp_path) == 1


def test_the_same_run_id_in_another_workspace_is_another_run(tmp_path: Path, run_id: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    link = tmp_path / "link"
    for folder in (here, there):
        folder.mkdir()
    link.symlink_to(here)
    sleep = "import time\ntime.sleep(300)"
    with start(run_id, here, sleep) as mine, start(run_id, there, sleep) as neighbour:
        wait_for(run_id, here, 1)
        wait_for(run_id, there, 1)

        assert processes.find(run_id, link) == [mine.pid], "a workspace is known by its resolved path"
        assert processes.end(run_id, here) == 1
        assert neighbour.poll() is None
        assert processes.find(run_id, there) == [neighbour.pid]

        assert processes.end(run_id, there) == 1


def test_a_process_with_one_of_the_two_marks_is_left_alone(tmp_path: Path, run_id: str) -> None:
    for name, value in processes.marks(run_id, tmp_path).items():
        environment = {key: text for key, text in os.environ.items() if key not in processes.marks("", tmp_path)}
        with subprocess.Popen(["sleep", "300"], env=environment | {name: value}) as stranger:
            assert processes.end(run_id, tmp_path) == 0
            assert stranger.poll() is None
            stranger.kill()


def test_a_bound_child_dies_with_its_killed_parent(tmp_path: Path, run_id: str) -> None:
    child = processes.bound([sys.executable, "-c", "import time\ntime.sleep(300)"])
    with start(run_id, tmp_path, f"import subprocess, time\nsubprocess.Popen({child!r})\ntime.sleep(300)") as parent:
        wait_for(run_id, tmp_path, 2)

        parent.kill()
        parent.wait(5)

        wait_for(run_id, tmp_path, 0)
