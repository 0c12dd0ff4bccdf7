"""Every way in which a run can be ended ends its sandboxes: real Ray, real processes, real kills, real bubblewrap."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import EnvironmentSpec
from agentic.sandbox.settings import BubblewrapSandbox

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

REPOSITORY = Path(__file__).parents[3]
DRIVER = Path(__file__).with_name("drive_trials.py")
SANDBOX = BubblewrapSandbox(memory_mb=128, scratch_mb=16)
ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'doubles'}",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_worker_niceness": "0",
    # Ray's default depends on a file in the user's home that other programs make.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": uuid4().hex,
}
ASLEEP = "1618.0339"
"""What the agents' commands sleep for, which no other process does."""


@pytest.fixture(scope="module")
def ray_head(tmp_path_factory):
    """A Ray that lives on when a trainer dies, as a run's does."""
    folder = tmp_path_factory.mktemp("ray")
    head = subprocess.Popen([sys.executable, str(DRIVER), "head", str(folder)], env=ENVIRONMENT, stdin=subprocess.PIPE)
    try:
        wait_until((folder / "address").exists, 90)
        yield (folder / "address").read_text()
    finally:
        head.stdin.close()
        head.wait(60)


@pytest.fixture
def trainer(ray_head, tmp_path, build_tasks, trial_for, model_dir):
    """A trainer whose two trials are running: its process and its folder."""
    (task,) = asyncio.run(build_tasks(tmp_path / "data", SANDBOX, "calc", store_dir=tmp_path / "images"))
    job = RolloutJob(
        run_id=tmp_path.name.replace("_", "-"),
        run_dir=tmp_path / "run",
        data_dir=tmp_path / "data",
        store_dir=tmp_path / "images",
        model_dir=model_dir,
        sandbox=SANDBOX,
        max_prompt_tokens=100,
        max_response_tokens=100,
    )
    request = trial_for(
        trial_id="trial",
        task_dir=str(task),
        agent=ScriptedAgentSettings(commands=(f"sleep {ASLEEP}",), command_timeout_seconds=2000),
        environment=EnvironmentSpec(),
        deadline_seconds=900,
        start_seconds=100,
        grading_seconds=100,
    )
    (tmp_path / "address").write_text(ray_head)
    arguments = [sys.executable, str(DRIVER), "train", str(tmp_path), job.model_dump_json(), request.model_dump_json()]
    process = subprocess.Popen(arguments, env=ENVIRONMENT)
    try:
        wait_until(lambda: asleep() >= 2 or process.poll() is not None or (tmp_path / "first.json").exists(), 120)
        assert process.poll() is None
        assert asleep() == 2, (tmp_path / "first.json").read_text()
        yield process, tmp_path
    finally:
        process.kill()
        process.wait()


def asleep():
    """Sandboxed sleepers, by what the kernel says: the shell that waits for one counts too."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += path.read_bytes().split(b"\0")[:2] == [b"sleep", ASLEEP.encode()]
    return found


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


def runner_process():
    """The trial runner's process, which Ray names after its class; of this test's Ray, not of another one here."""
    ours = ENVIRONMENT["RAY_AUTH_TOKEN"].encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            named = path.read_bytes().startswith(b"ray::TrialRunnerActor")
            if named and ours in path.with_name("environ").read_bytes():
                return int(path.parent.name)
    raise AssertionError("no trial runner")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "stop", "kill"])
def test_a_trainer_that_ends_takes_its_sandboxes_along(trainer, how):
    process, _ = trainer
    process.send_signal(how)
    wait_until(lambda: asleep() == 0, 40)
    assert process.wait(30) != 0


def test_a_killed_runner_loses_its_trials_as_infra_and_the_next_one_runs_on(trainer):
    _, folder = trainer
    os.kill(runner_process(), signal.SIGKILL)
    wait_until((folder / "after.json").exists, 90)
    assert asleep() == 0
    for name in ("first", "second"):
        got = json.loads((folder / f"{name}.json").read_text())
        assert got["rewards"] is None
        assert "Actor" in got["exception"]
    assert json.loads((folder / "after.json").read_text())["rewards"] == {"reward": 0.0}


def test_a_killed_worker_takes_its_trial_along_and_no_other(trainer):
    _, folder = trainer
    os.kill(int((folder / "second.pid").read_text()), signal.SIGKILL)
    wait_until(lambda: asleep() == 1, 60)
    time.sleep(8)
    assert asleep() == 1, "the other worker says that it lives"
