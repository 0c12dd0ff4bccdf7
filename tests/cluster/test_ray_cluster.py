"""The real KubeRay operator and real Ray pods: made, ready, worked on, lost, removed.

The trainer's environment lies on the node (`testbed.pipeline_image`). A job is held by the lock of its data set, so
that it runs for as long as a test wants, and then ends for a reason of its own: there is no such data set. Training
itself on this path is `tests/cluster/test_pipeline_*.py`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray_space import Space, ray_space, wait

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.errors import OtherRunError, RayClusterError
from agentic.cluster.patience import Patience
from agentic.cluster.ray_clusters import ensure, remove
from agentic.cluster.ray_head import RayHead
from agentic.cluster.resources import RAY_CLUSTERS
from agentic.cluster.settings import ClusterSettings
from agentic.files import locked_folder
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.head_job import HeadJob
from agentic.training.jobs import TrainJob
from agentic.training.ray_jobs import RayJobClient, Submission
from agentic.training.settings import RaySettings, TrainSettings
from steps.ray_head import ensure_token, manifest_of
from testbed.access import ClusterAccess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

RAY = RaySettings(cpus=4, object_store_bytes=100_000_000)
FOLLOWER = Path(__file__).parents[1] / "doubles" / "head_follower.py"
REPOSITORY = Path(__file__).parents[2]
PATIENT = Patience(lasting_seconds=60, passing_seconds=300, start_seconds=300)


@dataclass(frozen=True)
class Trainer:
    """A run's RayCluster and its work, in a space."""

    space: Space

    def manifest(self, run_id: str = "r", **changes: object) -> dict[str, object]:
        settings = self.space.settings.model_copy(update=changes)
        ensure_token(self.space.root / "runs" / run_id / "ray.token")
        return manifest_of(settings, RAY, train(settings), RolloutSettings(), run_id)

    def job(self) -> HeadJob:
        root = self.space.root
        work = TrainJob(
            run_id="r",
            run_dir=root / "runs" / "r",
            model_dir=root / "models" / "tiny",
            data_dir=root / "datasets" / "repair",
            store_dir=root / "images",
            train=train(self.space.settings),
            ray=RAY,
            rollout=RolloutSettings(),
            sandbox=BubblewrapSandbox(),
        )
        for folder in (work.data_dir, work.model_dir):
            folder.mkdir(parents=True, exist_ok=True)
        return HeadJob(work="train", job=work)


def train(settings: ClusterSettings) -> TrainSettings:
    return TrainSettings(device="cpu", nodes=1 + settings.workers.replicas, gpus_per_node=1, threads=1)


@pytest.fixture
def space(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[Space]:
    with ray_space(cluster, namespace, tmp_path) as space:
        yield space


@contextmanager
def running(space: Space, job: HeadJob) -> Iterator["Follower"]:
    """A follower as a process; ended with the test."""
    files = space.root / f"follower-{uuid.uuid4().hex[:6]}"
    files.mkdir()
    (files / "cluster.json").write_text(space.settings.model_dump_json())
    (files / "job.json").write_text(job.model_dump_json())
    with (files / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, str(FOLLOWER), str(files / "cluster.json"), str(files / "job.json")],
            cwd=REPOSITORY,
            env=os.environ | {"KUBECONFIG": str(space.account), "PYTHONPATH": str(REPOSITORY)},
            stdout=said,
            stderr=said,
        )
        try:
            yield Follower(process, files / "said")
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Follower:
    process: "subprocess.Popen[bytes]"
    file: Path

    @property
    def said(self) -> str:
        return self.file.read_text(errors="replace")

    def wait_for(self, words: str, seconds: float = 240) -> None:
        wait(lambda: words in self.said or self.process.poll() is not None, self.file, seconds)
        assert words in self.said, self.said

    def wait(self, seconds: float = 120) -> int:
        wait(lambda: self.process.poll() is not None, self.file, seconds)
        code = self.process.returncode
        assert code is not None
        return code


async def make(space: Space, manifest: dict[str, object], said: list[str], patience: Patience = PATIENT) -> RayHead:
    async with KubeClient(LoadedCredentials(space.account), namespace=space.namespace) as api:
        return await ensure(api, manifest, said.append, patience=patience)


async def test_head_and_worker_come_up_take_a_job_and_go_with_their_run_alone(space: Space) -> None:
    said: list[str] = []
    workers = space.settings.workers.model_copy(update={"replicas": 1})
    manifest = Trainer(space).manifest(workers=workers)
    head = await make(space, manifest, said)
    token = (space.root / "runs" / "r" / "ray.token").read_text()
    count = "import ray; ray.init(logging_level='ERROR'); print('nodes', len(ray.nodes()), flush=True)"
    async with RayJobClient(head.dashboard, token) as jobs:
        assert await jobs.version() == space.settings.ray_version
        await jobs.submit(Submission("counts", f'python -c "{count}"', {}))
        log = "".join([text async for text in jobs.log("counts")])
    assert "nodes 2" in log, log
    shown = space.cluster.kubectl("get", "rayclusters", f"--namespace={space.namespace}")
    assert "raycluster-verl" in shown
    assert "ready" in shown
    assert "raycluster-verl-head-svc" in space.cluster.kubectl("get", "svc", f"--namespace={space.namespace}")

    assert await make(space, manifest, said) == head, "it is found and not made again"
    with pytest.raises(OtherRunError, match="belongs to run r"):
        await make(space, Trainer(space).manifest("another", workers=workers), said)
    async with KubeClient(LoadedCredentials(space.account), namespace=space.namespace) as api:
        assert not await remove(api, "raycluster-verl", "another")
        assert await remove(api, "raycluster-verl", "r")
        assert (await api.list(RAY_CLUSTERS)).items == ()
    assert space.head_pod() == ""


def test_a_killed_follower_leaves_its_job_and_the_next_one_takes_over(space: Space) -> None:
    """The job waits for a folder that the test holds; let go, it finds no data set, and says so everywhere."""
    job = Trainer(space).job()
    with ExitStack() as held:
        held.enter_context(locked_folder(job.job.data_dir, lambda: None, exclusive=True))
        with running(space, job) as first:
            first.wait_for("waiting for another run that makes")
            os.kill(first.process.pid, signal.SIGKILL)
        with running(space, job) as second:
            second.wait_for("which is still going")
            assert "submitted" not in second.said
            assert second.process.poll() is None
            held.close()
            assert second.wait() == 78, second.said
            assert "is no complete data set" in second.said
            assert "loading data set" in second.said, "the log of the job from its beginning"
    log = space.log(space.head_pod())
    assert "loading model" in log, "kubectl logs of the head shows what the job prints"
    assert "is no complete data set" in log


def test_a_follower_that_is_told_to_end_takes_its_job_along(space: Space) -> None:
    """There is no Workflow that would say that it goes on."""
    job = Trainer(space).job()
    with locked_folder(job.job.data_dir, lambda: None, exclusive=True):
        with running(space, job) as follower:
            follower.wait_for("waiting for another run that makes")
            follower.process.terminate()
            follower.wait()
        with running(space, job) as next_one:
            next_one.wait_for("submitted")
            next_one.wait_for("waiting for another run that makes")
            pod = space.head_pod()
            space.cluster.kubectl("delete", pod, f"--namespace={space.namespace}", "--wait=false")
            assert next_one.wait() == 75, next_one.said
    assert f"pod {pod.removeprefix('pod/')}" in next_one.said.splitlines()[-1]
    assert "delete" in next_one.said.splitlines()[-1]


async def test_a_cluster_that_cannot_start_ends_early_and_by_name(space: Space) -> None:
    brief = Patience(lasting_seconds=5, passing_seconds=5, start_seconds=200)
    with pytest.raises(RayClusterError, match=r"^image-[a-z-]+: pod raycluster-verl-head-"):
        await make(
            space, Trainer(space).manifest(trainer_image=f"{space.cluster.layout.registry}/none/none:1"), [], brief
        )
    # The next settings replace what was made of the last.
    large = space.settings.head.model_copy(update={"memory": "900Gi"})
    with pytest.raises(Exception, match=r"no-room-for-memory|larger-than-any-node"):
        await make(space, Trainer(space).manifest(head=large), [], brief)
    said: list[str] = []
    waiting = asyncio.create_task(make(space, Trainer(space).manifest(head=large), said, PATIENT))
    where = (f"--namespace={space.namespace}", "raycluster", "raycluster-verl", "--type=merge")
    space.cluster.kubectl("patch", *where, "-p", '{"spec": {"suspend": true}}')
    with pytest.raises(RayClusterError, match="is suspended"):
        await waiting
    space.cluster.kubectl("patch", *where, "-p", '{"spec": {"suspend": false}}')
    async with KubeClient(LoadedCredentials(space.account), namespace=space.namespace) as api:
        assert await remove(api, "raycluster-verl", "r")


async def test_a_state_that_kuberay_gave_up_in_is_named(space: Space) -> None:
    """KubeRay 1.5 writes `failed` no more; older ones do, and keep it."""
    large = space.settings.head.model_copy(update={"memory": "900Gi"})
    waiting = asyncio.create_task(make(space, Trainer(space).manifest(head=large), []))
    await asyncio.to_thread(
        space.cluster.kubectl,
        *("wait", f"--namespace={space.namespace}", "--for=create", "raycluster/raycluster-verl", "--timeout=60s"),
    )
    failed = json.dumps({"status": {"state": "failed", "reason": "the operator gave up"}})
    where = (f"--namespace={space.namespace}", "raycluster", "raycluster-verl", "--type=merge", "--subresource=status")
    await asyncio.to_thread(space.cluster.kubectl, "patch", *where, "-p", failed)
    with pytest.raises(Exception, match="has failed: "):
        await waiting
