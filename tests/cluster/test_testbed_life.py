"""A cluster of its own for what would disturb others: killed half-way, killed in part, and taken down."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.layout import NAME_VARIABLE, Layout
from testbed.processes import Daemons

pytestmark = [pytest.mark.cluster, pytest.mark.scale, pytest.mark.timeout(400)]


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    monkeypatch.setenv(NAME_VARIABLE, f"testbed-life-{os.getpid()}")
    yield Layout.of_this_machine()
    run_verb("down")


def run_verb(*arguments: str, timeout: float | None = None) -> str:
    """What it printed; cut off by SIGKILL after the time-out."""
    command = [sys.executable, "-m", "testbed", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return ""
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill(layout: Layout, *names: str) -> None:
    for name in names:
        pid = Daemons(layout).pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


def traces(layout: Layout) -> list[str]:
    folders = [layout.state, layout.sockets, layout.network_namespace, *Path("/sys/fs/cgroup").glob(f"*/{layout.name}")]
    left = [str(folder) for folder in folders if folder.exists()]
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if layout.name in line]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            left += [line] if f"/{layout.name}/" in line else []
    return left


def test_a_cluster_survives_kills_and_goes_away_without_a_trace(layout: Layout) -> None:
    run_verb("up", timeout=4)
    run_verb("up")
    words = ("kubectl", "run", "sleeper", "--image=agentic/base:local", "--image-pull-policy=Never", "--restart=Never")
    run_verb("run", *words, "--", "sleep", "600")
    run_verb("run", "kubectl", "wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
    kill(layout, "etcd", "kube-apiserver", "kubelet", "containerd")
    run_verb("up")
    run_verb("run", "kubectl", "wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
    kill(layout, "kube-apiserver", "containerd")
    run_verb("down")
    assert traces(layout) == []
    run_verb("down")
