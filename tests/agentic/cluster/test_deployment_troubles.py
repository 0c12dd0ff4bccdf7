"""Why BuildKit is not there, in the words of those who keep it away."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer
from kube_pods import PodRuntime

from agentic.cluster.apply import apply
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.deployments import find_deployment_troubles
from agentic.cluster.objects.buildkit import buildkit
from agentic.cluster.resources import DEPLOYMENTS, EVENTS, PODS, JsonObject, uid_of
from agentic.cluster.settings import ClusterSettings

SETTINGS = ClusterSettings(namespace="rl")
PULL = 'Back-off pulling image "moby/buildkit:v0.32.2": ErrImagePull: failed to resolve: not found'
PRIVILEGED = (
    'pods "buildkitd-5c5f" is forbidden: violates PodSecurity "baseline:latest": privileged (container "buildkitd" '
    "must not set securityContext.privileged=true)"
)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer(pods=PodRuntime(starts_pods=False)) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(FixedCredentials(Access(server.address)), namespace="rl") as api:
        for manifest in buildkit(SETTINGS):
            await apply(api, manifest)
        yield api


async def make_pod(api: KubeClient, **status: object) -> JsonObject:
    pod = await api.create(PODS, {**PODS.head("buildkitd-1", labels={"app": "buildkitd"}), "spec": {"containers": []}})
    await api.patch(PODS, "buildkitd-1", {"status": status}, subresource="status")
    return pod


async def names(api: KubeClient) -> list[str]:
    return [trouble.name for trouble in await find_deployment_troubles(api, "buildkitd")]


async def test_an_image_that_is_not_there_is_named(api: KubeClient) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": PULL}}}
    await make_pod(api, phase="Pending", containerStatuses=[{"name": "buildkitd", **waiting}])
    assert await names(api) == ["image-missing"]


async def test_a_pod_that_admission_refuses_is_named_by_what_the_deployment_says(api: KubeClient) -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": PRIVILEGED}
    await api.patch(DEPLOYMENTS, "buildkitd", {"status": {"conditions": [condition]}}, subresource="status")
    assert await names(api) == ["admission-refused"]


async def test_what_does_not_pass_comes_first_and_old_events_do_not_count(api: KubeClient) -> None:
    said = "0/3 nodes are available: 3 Insufficient memory."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod = await make_pod(api, phase="Pending", conditions=[scheduled])
    for number, uid in enumerate((uid_of(pod), "of-an-earlier-pod")):
        event = {"involvedObject": {"kind": "Pod", "name": "buildkitd-1", "uid": uid}, "reason": "FailedMount"}
        words = 'MountVolume.SetUp failed for volume "certs" : secret "none" not found' if number == 0 else "no space"
        await api.create(EVENTS, {**EVENTS.head(f"e-{number}"), **event, "message": words})
    assert await names(api) == ["secret-missing", "no-room-for-memory"]


async def test_one_that_is_available_or_not_there_or_not_ours_to_see_is_in_no_trouble(
    api: KubeClient, server: KubeApiServer
) -> None:
    available = {"type": "Available", "status": "True"}
    await api.patch(DEPLOYMENTS, "buildkitd", {"status": {"conditions": [available]}}, subresource="status")
    await make_pod(api, phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert await names(api) == []
    assert await find_deployment_troubles(api, "none") == []
    server.faults.append(Fault(status=403, times=9))
    assert await names(api) == []


@pytest.mark.parametrize("path", ["/pods", "/events"])
async def test_what_may_not_be_read_is_left_out(api: KubeClient, server: KubeApiServer, path: str) -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": PRIVILEGED}
    await api.patch(DEPLOYMENTS, "buildkitd", {"status": {"conditions": [condition]}}, subresource="status")
    await make_pod(api, phase="Pending")
    server.faults.append(Fault(path=path, status=403, times=9))
    assert await names(api) == ["admission-refused"]
