"""The run section of a SkyPilot task, executed: two nodes of real Ray on this machine's loopback, with what SkyPilot
says of each set by hand."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from agentic import processes
from workflows.settings import load_settings
from workflows.targets import skypilot
from workflows.targets.launch import Launch

ROOT = Path(__file__).resolve().parents[3]
ADDRESSES = ("127.0.0.2", "127.0.0.3")
"""Not 127.0.0.1, for which Ray puts the machine's address."""
PORTS = {"skypilot.ray_port": 26379, "skypilot.dashboard_port": 28265}

pytestmark = [pytest.mark.skypilot, pytest.mark.timeout(240)]

BOTH_WORK = """\
import json, os, urllib.request
import ray

ray.init(address=os.environ["AGENTIC_RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_gpus=1)
def where():
    import time
    import ray
    time.sleep(0.5)
    return ray.util.get_node_ip_address()

print("payload ran on", sorted(ray.get([where.remote(), where.remote()])), flush=True)
"""


def script(workspace: Path, payload: str) -> str:
    given = [
        *("train.nodes=2", "cluster.workers.replicas=1", "skypilot.volume=shared", "skypilot.join.poll_seconds=5"),
        *("ray.cpus=2", "ray.object_store_bytes=100000000", *(f"{name}={port}" for name, port in PORTS.items())),
    ]
    settings = load_settings("demo", [*given, f'skypilot.command=["python3", "{workspace}/payload.py"]'], {})
    (workspace / "payload.py").write_text(payload)
    launch = Launch("sky", "demo", (), (), None, PurePosixPath(ROOT), PurePosixPath(workspace))
    return str(skypilot.render(settings, launch)["run"])


@contextmanager
def nodes(run: str, workspace: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Both nodes, started as SkyPilot starts them; none of their processes is left."""
    common = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SKYPILOT_NODE_IPS": "\n".join(ADDRESSES),
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        "RAY_AUTH_TOKEN": "a" * 64,
        # By which whatever is left is found.
        **processes.marks("sky-test", workspace),
    }
    started = [
        subprocess.Popen(
            ["bash", "-c", run],
            env=common | {"SKYPILOT_NODE_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield started
    finally:
        # The nodes' own shells among them; what Ray starts holds their output open.
        processes.end("sky-test", workspace)
        for process in started:
            process.communicate()


def test_two_nodes_join_the_payload_uses_both_and_all_of_it_ends(tmp_path: Path) -> None:
    with nodes(script(tmp_path, BOTH_WORK), tmp_path) as (head, worker):
        said, _ = head.communicate(timeout=200)
        assert head.returncode == 0, said
        assert "ray: 2 of 2 nodes have joined (127.0.0.2, 127.0.0.3)" in said
        assert "payload ran on ['127.0.0.2', '127.0.0.3']" in said
        other, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, other
        assert processes.find("sky-test", tmp_path) == []


def test_a_payload_that_fails_gives_its_exit_code_and_ends_ray_too(tmp_path: Path) -> None:
    with nodes(script(tmp_path, "raise SystemExit(75)"), tmp_path) as (head, worker):
        said, _ = head.communicate(timeout=200)
        assert head.returncode == 75, said
        worker.communicate(timeout=60)
        assert processes.find("sky-test", tmp_path) == []


def test_a_head_that_is_told_to_end_takes_ray_along(tmp_path: Path) -> None:
    with nodes(script(tmp_path, "import time; print('payload waits', flush=True); time.sleep(600)"), tmp_path) as (
        head,
        worker,
    ):
        assert head.stdout is not None
        while "payload waits" not in head.stdout.readline():
            assert head.poll() is None
        head.send_signal(signal.SIGTERM)
        head.communicate(timeout=60)
        assert head.returncode == 143
        worker.communicate(timeout=60)
        assert processes.find("sky-test", tmp_path) == []
