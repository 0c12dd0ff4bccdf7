"""Sweeping by label: all of a run, nothing of another, as often as one likes."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import ForbiddenError
from agentic.cluster.labels import ROLE_LABEL, labels_of_run, shared_labels
from agentic.cluster.resources import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    RAY_CLUSTERS,
    WORKFLOWS,
    Resource,
)
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.sweep import KINDS, SANDBOXES, STEP_OF, left, sweep, sweep_short_lived

WORKFLOW_POD = {STEP_OF: "agentic-rl-r1"}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    settings = KubeClientSettings(retry_seconds=5)
    async with KubeClient(FixedCredentials(Access(server.address)), settings, namespace="rl") as api:
        yield api


async def make(api: KubeClient, kind: Resource, name: str, run: str, **labels: str) -> None:
    await api.create(kind, kind.head(name, labels=labels_of_run(run, labels)))


async def test_all_of_the_run_goes_the_trainer_first_and_policies_last(api: KubeClient) -> None:
    for kind in reversed(KINDS):
        await make(api, kind, "one", "r1")
    removed = await sweep(api, "rl", "r1")
    assert removed == [f"{kind.kind} one" for kind in KINDS]
    assert (removed[0], removed[-1]) == ("RayCluster one", "NetworkPolicy one")
    assert await left(api, "rl", "r1") == []
    assert await sweep(api, "rl", "r1") == []


async def test_sandboxes_of_the_group_that_older_guides_name_go_as_well(api: KubeClient) -> None:
    older = Resource("apps.kruise.io", "v1alpha1", "sandboxsets", "SandboxSet")
    await make(api, older, "astropy-astropy-12907", "r1")
    assert await left(api, "rl", "r1") == ["SandboxSet astropy-astropy-12907"]
    assert await sweep(api, "rl", "r1") == ["SandboxSet astropy-astropy-12907"]


async def test_other_runs_and_what_runs_share_stay(api: KubeClient) -> None:
    for kind in KINDS:
        await make(api, kind, "theirs", "r2")
    await api.create(CONFIG_MAPS, CONFIG_MAPS.head("buildkitd", labels=shared_labels()))
    await api.create(CLAIMS, CLAIMS.head("verl-models", labels=shared_labels()))
    assert await sweep(api, "rl", "r1") == []
    assert len(await left(api, "rl", "r2")) == len(KINDS)
    assert (await api.get(CONFIG_MAPS, "buildkitd"))["metadata"]["name"] == "buildkitd"


async def test_the_workflow_and_the_pods_of_its_steps_stay(api: KubeClient) -> None:
    await make(api, WORKFLOWS, "agentic-rl-r1", "r1")
    await api.create(PODS, PODS.head("cleanup", labels=labels_of_run("r1", WORKFLOW_POD)))
    await make(api, PODS, "leftover", "r1")
    assert await sweep(api, "rl", "r1") == ["Pod leftover"]
    assert await left(api, "rl", "r1") == []
    assert await left(api, "rl", "r1", counts_steps=True) == ["Pod cleanup"]


async def test_what_belongs_to_something_else_of_the_run_is_not_removed_twice(api: KubeClient) -> None:
    owner = await api.create(RAY_CLUSTERS, RAY_CLUSTERS.head("raycluster-verl", labels=labels_of_run("r1")))
    reference = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "raycluster-verl"}
    owners = [{**reference, "uid": owner["metadata"]["uid"]}]
    await api.create(PODS, PODS.head("head", labels=labels_of_run("r1"), ownerReferences=owners))
    assert "RayCluster raycluster-verl" in await sweep(api, "rl", "r1")
    assert await left(api, "rl", "r1", timeout_seconds=10) == []


async def test_what_is_on_its_way_out_is_left_to_it_and_still_told(api: KubeClient) -> None:
    head = CONFIG_MAPS.head("slow", labels=labels_of_run("r1"), finalizers=["x/y"])
    await api.create(CONFIG_MAPS, head)
    assert await sweep(api, "rl", "r1") == ["ConfigMap slow"]
    assert await sweep(api, "rl", "r1") == []
    assert await left(api, "rl", "r1") == ["ConfigMap slow"]


async def test_logs_of_builds_that_ended_may_stay(api: KubeClient) -> None:
    for name, condition in (("ended", "Complete"), ("broken", "Failed"), ("going", "Suspended")):
        await make(api, JOBS, name, "r1")
        status = {"conditions": [{"type": condition, "status": "True"}]}
        await api.patch(JOBS, name, {"status": status}, subresource="status")
    assert await sweep(api, "rl", "r1", keeps_logs=True) == ["Job going"]
    assert await sweep(api, "rl", "r1") == ["Job broken", "Job ended"]


async def test_kinds_that_an_account_has_nothing_to_do_with_hold_nothing(
    api: KubeClient, server: KubeApiServer
) -> None:
    refused = [Fault(path=f"/{kind.group}/.*{kind.plural}", status=403, times=9) for kind in SANDBOXES]
    server.faults += refused
    await make(api, NETWORK_POLICIES, "ray-r1", "r1")
    assert await sweep(api, "rl", "r1") == ["NetworkPolicy ray-r1"]
    server.faults[:] = [Fault(path="/rayclusters", status=403)]
    with pytest.raises(ForbiddenError, match="rayclusters"):
        await sweep(api, "rl", "r1")


async def test_pods_of_one_try_go_when_they_are_over_or_too_old_and_a_try_under_way_keeps_its_own(
    api: KubeClient, server: KubeApiServer
) -> None:
    server.pods.starts_pods = False
    for name, role in (("ended", "try"), ("waiting", "try"), ("other", "trainer")):
        await api.create(PODS, PODS.head(name, labels=shared_labels(**{ROLE_LABEL: role})))
    await api.patch(PODS, "ended", {"status": {"phase": "Succeeded"}}, subresource="status")
    await api.patch(PODS, "other", {"status": {"phase": "Failed"}}, subresource="status")
    assert await sweep_short_lived(api, "rl", "try", 300) == ["Pod ended"]
    assert await sweep_short_lived(api, "rl", "try", 300) == []
    assert await sweep_short_lived(api, "rl", "try", -5) == ["Pod waiting"], "nobody will ever end it"
    assert [body["metadata"]["name"] for body in (await api.list(PODS)).items] == ["other"]
