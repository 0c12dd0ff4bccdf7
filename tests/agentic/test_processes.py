"""A run's processes are found by the run id in their environment and ended for good; nobody else's are touched."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from agentic import processes

DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\nelse:\n    time.sleep(300)"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(300)"


@pytest.fixture
def run_id() -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    yield name
    processes.end(name, grace_seconds=0)


def start(run_id: str, code: str) -> subprocess.Popen[str]:
    environment = os.environ | {processes.RUN_VARIABLE: run_id}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(run_id: str, count: int) -> None:
    deadline = time.monotonic() + 10
    while len(processes.find(run_id)) != count:
        assert time.monotonic() < deadline, f"{processes.find(run_id)} of run {run_id}, expected {count}"
        time.sleep(0.05)


def test_a_daemon_that_left_its_session_is_ended_too(run_id: str) -> None:
    with start(run_id, DAEMON):
        wait_for(run_id, 2)

        assert processes.end(run_id) == 2

    assert processes.find(run_id) == []


def test_a_process_that_ignores_the_polite_signal_is_killed(run_id: str) -> None:
    with start(run_id, DEAF) as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == "deaf\n"

        processes.end(run_id, grace_seconds=0.2)

        assert deaf.wait(5) < 0


def test_ending_twice_is_safe_and_another_run_is_left_alone(run_id: str) -> None:
    other = f"{run_id}-other"
    with start(other, "import time\ntime.sleep(300)") as neighbour:
        wait_for(other, 1)

        assert processes.end(run_id) == 0
        assert processes.end(run_id) == 0
        assert neighbour.poll() is None

        assert processes.end(other) == 1


def test_a_bound_child_dies_with_its_killed_parent(run_id: str) -> None:
    child = processes.bound([sys.executable, "-c", "import time\ntime.sleep(300)"])
    with start(run_id, f"import subprocess, time\nsubprocess.Popen({child!r})\ntime.sleep(300)") as parent:
        wait_for(run_id, 2)

        parent.kill()
        parent.wait(5)

        wait_for(run_id, 0)
