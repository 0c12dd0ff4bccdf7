"""One Slurm cluster for the tests of this folder, and jobs whose parts can stand in for Ray."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from slurm_cluster import SlurmCluster

from workflows.settings import load_settings
from workflows.targets import slurm
from workflows.targets.launch import Launch

ROOT = Path(__file__).resolve().parents[2]

STAND_IN = """\
#!/usr/bin/env bash
# Stands in for Python where a test is about the job alone: a head that listens, nodes that wait and are there.
given() { sed "s/.*--$1=\\([^ ]*\\).*/\\1/" <<<"$arguments"; }
arguments=$*
case $arguments in
    *"ray.scripts.scripts start"*--head*) exec PYTHON -c "$LISTEN" "$(given node-ip-address)" "$(given port)" ;;
    *"ray.scripts.scripts start"*) touch "$AGENTIC_WORKSPACE/joined"; exec sleep infinity ;;
    *agentic.training.ray_nodes*) until [ -e "$AGENTIC_WORKSPACE/joined" ]; do sleep 0.1; done ;;
    *) exec PYTHON "$@" ;;
esac
"""

LISTEN = """\
import signal, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
signal.pause()
"""

GOES_ON = """\
trap 'echo "payload ends in good order"; exit 143' TERM
echo "payload starts"
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
sleep 300 & wait
"""
"""A run that waits, ends well when it is told to, and is done the second time."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two nodes; none of their processes is left afterwards."""
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"), shared=tmp_path_factory.getbasetemp())
    try:
        made.start()
        yield made
    finally:
        made.close()
    assert made.processes() == []


@dataclass
class Job:
    """A submitted job."""

    cluster: SlurmCluster
    id: str
    workspace: Path

    @property
    def output(self) -> str:
        """What it has printed so far, in all of its starts."""
        path = self.cluster.folder / f"slurm-{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def await_state(self, *states: str, seconds: float = 60.0) -> str:
        return self.cluster.await_state(self.id, states, seconds)

    def await_output(self, text: str, seconds: float = 60.0, times: int = 1) -> None:
        """Wait until it has printed something so many times."""
        deadline = time.monotonic() + seconds
        while self.output.count(text) < times:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{text!r} not in what job {self.id} ({self.cluster.state(self.id)}) says: {self.output}"
                )
            time.sleep(0.1)

    def left(self) -> list[str]:
        """Command lines of what is left of it on the nodes."""
        found = []
        for pid in self.cluster.processes():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"SLURM_JOB_ID={self.id}".encode() in environment or "raylet" in words or "gcs_server" in words:
                found.append(words.strip()[:200])
        return found

    def await_nothing_left(self, seconds: float = 20.0) -> None:
        """Its processes end; what is left after that is in the failure."""
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.left() == []


Submit = Callable[..., Job]


@pytest.fixture
def submit(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Submit]:
    """Render and submit a job that runs a command; ended when the test is."""
    jobs: list[Job] = []

    def act(payload: str, *arguments: str, ray: bool = False, options: tuple[str, ...] = ()) -> Job:
        script, python = tmp_path / f"payload-{len(jobs)}", tmp_path / "python"
        script.write_text(payload)
        python.write_text(STAND_IN.replace("PYTHON", sys.executable).replace("$LISTEN", LISTEN.replace('"', "'")))
        python.chmod(0o755)
        given = [
            *("train.nodes=2", "cluster.workers.replicas=1", "ray.cpus=2", "ray.object_store_bytes=100000000"),
            *("slurm.cpus_per_node=2", "slurm.memory=4G", "slurm.time_limit=10", "slurm.dashboard_port=null"),
            *("slurm.worker_pause_seconds=0", f"slurm.join.poll_seconds={10 if ray else 1}"),
            f"slurm.python={sys.executable if ray else python}",
            f"slurm.command={json.dumps([sys.executable if ray else 'bash', str(script)])}",
            *arguments,
        ]
        launch = Launch(f"job-{len(jobs)}", "demo", (), (), None, PurePosixPath(ROOT), PurePosixPath(tmp_path))
        path = tmp_path / f"job-{len(jobs)}.sbatch"
        path.write_text(slurm.render(load_settings("demo", given, {}), launch))
        done = cluster.run(["sbatch", "--parsable", *options, str(path)])
        assert done.returncode == 0, done.stderr
        jobs.append(Job(cluster, done.stdout.strip(), tmp_path))
        return jobs[-1]

    yield act
    for job in jobs:
        cluster.run(["scancel", job.id])
    for job in jobs:
        job.await_state("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", seconds=40)
        job.await_nothing_left()
