"""What steps decide about the run's Ray head: its manifest, its token, and what becomes of a job that they leave."""

import asyncio
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import WORKFLOWS
from agentic.cluster.settings import ClusterSettings, KubeClientSettings, SecretKeySettings
from agentic.errors import PermanentError
from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.head_job import HeadJob
from agentic.training.jobs import TrainJob, TrainSummary
from agentic.training.settings import RaySettings, TrainSettings
from steps import workflow_owner
from steps.ray_head import ensure_token, lasting_trouble, manifest_of, owning_workflow, takes_job_along

RAY = RaySettings(cpus=4)


def variables(manifest: dict[str, object], group: str = "headGroupSpec") -> dict[str, object]:
    spec = manifest["spec"]
    assert isinstance(spec, dict)
    (container,) = spec[group]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_rays_pods_have_the_runs_token_and_print_where_kubectl_logs_reads() -> None:
    settings = ClusterSettings(trial_server_key=SecretKeySettings(name="trials"))
    rollout = RolloutSettings.model_validate({"trial_server": {"url": "http://trials:8080"}})
    made = manifest_of(settings, RAY, TrainSettings(), rollout, "r")
    found = variables(made)
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN_PATH"] == "/workspace/runs/r/ray.token"
    assert found["AGENTIC_CONTAINER_OUTPUT"] == "/proc/1/fd/1"
    assert found["AGENTIC_TRIAL_SERVER_KEY"] == {"secretKeyRef": {"name": "trials", "key": "key"}}
    assert "VERL_PLATFORM" not in found
    assert variables(manifest_of(settings, RAY, TrainSettings(device="cpu"), rollout, "r"))["VERL_PLATFORM"] == "cpu"


def test_pods_that_are_not_the_machines_of_the_training_are_refused() -> None:
    with pytest.raises(PermanentError, match=r"cluster\.workers\.replicas to 3"):
        manifest_of(ClusterSettings(), RAY, TrainSettings(nodes=4), RolloutSettings(), "r")


def test_a_token_is_made_once_and_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r" / "ray.token"
    assert ensure_token(path) == ensure_token(path) == path.read_text()
    assert len(path.read_text()) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    """A step that was killed between making the file and writing it."""
    (tmp_path / "ray.token").touch(mode=0o600)
    assert len(ensure_token(tmp_path / "ray.token")) == 64


def test_two_steps_that_make_a_token_at_once_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ensure_token, [tmp_path / "ray.token"] * 8))) == 1


def test_a_cluster_belongs_to_the_workflow_of_its_own_namespace_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert owning_workflow(ClusterSettings()) is None
    for name, value in ((workflow_owner.NAME, "w"), (workflow_owner.UID, "u"), (workflow_owner.NAMESPACE, "default")):
        monkeypatch.setenv(name, value)
    owner = owning_workflow(ClusterSettings())
    assert owner is not None
    assert (owner["kind"], owner["metadata"]) == ("Workflow", {"name": "w", "uid": "u"})
    assert owning_workflow(ClusterSettings(namespace="elsewhere")) is None


@pytest_asyncio.fixture
async def api() -> AsyncIterator[KubeClient]:
    async with KubeApiServer() as server:
        settings = KubeClientSettings(retry_seconds=0.2)
        async with KubeClient(FixedCredentials(Access(server.address)), settings) as client:
            yield client


@pytest.mark.parametrize(
    ("spec", "phase", "takes"),
    [
        ({}, "Running", False),
        ({"shutdown": "Stop"}, "Running", True),
        ({"shutdown": "Terminate"}, "Running", True),
        ({}, "Failed", True),
    ],
)
async def test_a_step_that_only_moves_leaves_its_job_and_one_that_is_stopped_takes_it_along(
    api: KubeClient, monkeypatch: pytest.MonkeyPatch, spec: dict[str, str], phase: str, takes: bool
) -> None:
    monkeypatch.setenv(workflow_owner.NAME, "w")
    await api.create(WORKFLOWS, {**WORKFLOWS.head("w"), "spec": spec})
    await api.patch(WORKFLOWS, "w", {"status": {"phase": phase}}, subresource="status")
    assert await takes_job_along(api) is takes


async def test_where_nobody_can_tell_nothing_is_left_running(api: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(workflow_owner.NAME, raising=False)
    assert await takes_job_along(api)
    monkeypatch.setenv(workflow_owner.NAME, "gone")
    assert await takes_job_along(api)


async def test_a_silent_api_server_leaves_time_for_the_job_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet gives the pod two minutes in all."""
    monkeypatch.setenv(workflow_owner.NAME, "w")
    async with KubeApiServer() as server:
        server.faults.append(Fault(path="/workflows/", status=503, times=10_000))
        async with KubeClient(FixedCredentials(Access(server.address)), KubeClientSettings(retry_seconds=60)) as api:
            async with asyncio.timeout(20):
                assert await takes_job_along(api, within_seconds=0.3)


def test_an_end_that_another_try_would_meet_again_gets_its_name(tmp_path: Path) -> None:
    job = TrainJob(
        run_id="r",
        run_dir=tmp_path,
        model_dir=tmp_path,
        data_dir=tmp_path,
        store_dir=tmp_path,
        train=TrainSettings(),
        ray=RAY,
        rollout=RolloutSettings(),
        sandbox=BubblewrapSandbox(),
    )
    training = HeadJob(work="train", job=job)
    line = "the trainer went away: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (log: x)"
    found = lasting_trouble(training, line)
    assert found is not None
    assert found.startswith("gpu-memory: ")
    assert lasting_trouble(training, "the trainer went away: exit code -9 (log: x); trying again resumes") is None
    (tmp_path / "logs").mkdir()
    engine = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    (tmp_path / "logs" / "engine.log").write_text(f"starting\n{engine}\n")
    said = "vLLM ended with exit code 1 before it was ready: see engine.log"
    assert lasting_trouble(training, said) is None, "an engine's log is evaluation's"
    summary = TrainSummary(steps=1, best_step=1, best_rate=0.0, first_rate=None, checkpoint="c")
    assert lasting_trouble(HeadJob(work="evaluate", job=job, summary=summary), said) is not None
