"""A Ray head that is killed while it starts, or after, is replaced by the next try; there is never more than one."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agentic import processes
from agentic.training import ray_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def run_id(tmp_path: Path) -> Iterator[str]:
    name = f"head-{uuid4().hex[:8]}"
    yield name
    processes.end(name, tmp_path, grace_seconds=0)


def launch(workspace: Path, run_id: str) -> subprocess.Popen[bytes]:
    inputs = workspace / "inputs.json"
    train = {"device": "cpu", "gpus_per_node": 1}
    inputs.write_text(json.dumps({"run_id": run_id, "ray": {"cpus": 2}, "train": train}))
    command = [sys.executable, "-m", "steps.launch_cluster", "--inputs", str(inputs)]
    environment = os.environ | {"AGENTIC_WORKSPACE": str(workspace)}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)


def heads(run_id: str, workspace: Path) -> list[int]:
    found = processes.find(run_id, workspace)
    return [pid for pid in found if b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_step_killed_while_ray_starts_is_followed_by_exactly_one_head(tmp_path: Path, run_id: str) -> None:
    process = launch(tmp_path, run_id)
    try:
        process.wait(random.Random(5).uniform(2.0, 6.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert launch(tmp_path, run_id).wait(200) == 0
    first = heads(run_id, tmp_path)
    assert len(first) == 1

    assert launch(tmp_path, run_id).wait(200) == 0
    assert heads(run_id, tmp_path) == first, "a head that answers is kept"

    os.kill(first[0], signal.SIGKILL)
    assert launch(tmp_path, run_id).wait(200) == 0
    assert len(heads(run_id, tmp_path)) == 1

    run_dir = tmp_path / "runs" / run_id
    assert ray_cluster.stop(run_id, run_dir) > 0
    assert ray_cluster.stop(run_id, run_dir) == 0
    assert processes.find(run_id, tmp_path) == []
