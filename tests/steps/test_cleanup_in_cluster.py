"""The exit handler in a cluster: the run's objects go, also those that no other step looks after."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.labels import labels_of_run
from agentic.cluster.resources import JOBS, NETWORK_POLICIES, PODS, RAY_CLUSTERS, Resource, name_of
from agentic.cluster.sweep import STEP_OF

ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    """A run that has left something of every sort, and another one."""
    async with KubeClient(FixedCredentials(Access(server.address)), namespace="rl") as api:
        await api.create(RAY_CLUSTERS, RAY_CLUSTERS.head("raycluster-verl", labels=labels_of_run("r1")))
        await api.create(NETWORK_POLICIES, NETWORK_POLICIES.head("ray-r1", labels=labels_of_run("r1")))
        for name in ("going", "ended"):
            await api.create(JOBS, JOBS.head(name, labels=labels_of_run("r1")))
        done = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        await api.patch(JOBS, "ended", done, subresource="status")
        await api.create(PODS, PODS.head("cleanup", labels=labels_of_run("r1", {STEP_OF: "w"})))
        await api.create(JOBS, JOBS.head("of-another-run", labels=labels_of_run("r2")))
        yield api


async def clean(server: KubeApiServer, folder: Path, status: str, *, exit_code: int = 0) -> str:
    """What it printed."""
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "rl"}}
    clusters, users = [{"name": "c", "cluster": {"server": server.address}}], [{"name": "u", "user": {}}]
    config = {"kind": "Config", "clusters": clusters, "users": users, "contexts": [context], "current-context": "c"}
    (folder / "kubeconfig").write_text(json.dumps(config))
    given = {"sandbox": {"provider": "bubblewrap"}, "cluster": {"namespace": "rl"}}
    (folder / "inputs.json").write_text(json.dumps({"run_id": "r1", "status": status, **given}))
    named = {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "AGENTIC_TARGET": "argo",
        "AGENTIC_WORKSPACE": str(folder),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steps.cleanup", "--inputs", str(folder / "inputs.json")),
        cwd=ROOT,
        env=os.environ | named,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == exit_code, said.decode()
    return said.decode()


async def names(api: KubeClient, kind: Resource) -> list[str]:
    return [name_of(body) for body in (await api.list(kind)).items]


async def test_when_the_workflow_is_over_all_goes_but_logs(
    api: KubeClient, server: KubeApiServer, tmp_path: Path
) -> None:
    await clean(server, tmp_path, "Failed")
    assert await names(api, RAY_CLUSTERS) == []
    assert await names(api, NETWORK_POLICIES) == []
    assert await names(api, JOBS) == ["ended", "of-another-run"]
    assert await names(api, PODS) == ["cleanup"]
    progress = (tmp_path / "runs/r1/progress/cleanup.json").read_text()
    assert "1 RayClusters and 0 sandboxes ended, removed: Job going, NetworkPolicy ray-r1" in progress
    await clean(server, tmp_path, "Failed")
    assert await names(api, JOBS) == ["ended", "of-another-run"]


async def test_by_hand_what_may_still_be_in_use_stays(api: KubeClient, server: KubeApiServer, tmp_path: Path) -> None:
    await clean(server, tmp_path, "unknown")
    assert await names(api, RAY_CLUSTERS) == []
    assert await names(api, JOBS) == ["ended", "going", "of-another-run"]


@pytest.mark.parametrize(("status", "exit_code"), [(403, 78), (409, 75)])
async def test_a_part_that_fails_keeps_no_other_from_being_done(
    api: KubeClient, server: KubeApiServer, tmp_path: Path, status: int, exit_code: int
) -> None:
    server.faults.append(Fault(path="/rayclusters/", status=status))
    said = await clean(server, tmp_path, "Failed", exit_code=exit_code)
    assert "rayclusters raycluster-verl" in said
    assert await names(api, RAY_CLUSTERS) == [], "the sweep by label takes it"
    assert await names(api, NETWORK_POLICIES) == []
    assert await names(api, JOBS) == ["ended", "of-another-run"]
