"""The run's RayCluster: made once, waited for by what KubeRay says of it, ended early by name, removed alone.

KubeRay is played by hand here, in the words of its release 1.5.0; `tests/cluster/test_ray_cluster.py` has the real one.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer
from kube_pods import PodRuntime

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import ForeignObjectError, OtherRunError, RayClusterError, RayClusterLostError
from agentic.cluster.objects.ray_cluster import QUEUE_LABEL, ray_cluster
from agentic.cluster.patience import Patience
from agentic.cluster.ray_clusters import ensure, remove, stamped
from agentic.cluster.ray_head import HeadWatch, RayHead, head_of, loss_of
from agentic.cluster.resources import EVENTS, PODS, RAY_CLUSTERS, JsonObject, uid_of
from agentic.cluster.settings import ClusterSettings, KubeClientSettings

NAME = "raycluster-verl"
SETTINGS = ClusterSettings(namespace="default")
BRIEF = Patience(lasting_seconds=0.2, passing_seconds=0.6, start_seconds=30.0, look_seconds=0.1)
HEAD = f"{NAME}-head-abcde"


@dataclass
class KubeRay:
    """What the operator does, at a test's word."""

    api: KubeClient
    server: KubeApiServer
    said: list[str] = field(default_factory=list)

    async def cluster(self) -> JsonObject:
        """Once it is there."""
        async with asyncio.timeout(20):
            while not (found := (await self.api.list(RAY_CLUSTERS)).items):
                await asyncio.sleep(0.01)
        return found[0]

    async def make_head(self, **status: Any) -> JsonObject:
        return await self.make_pod(HEAD, uid_of(await self.cluster()), **status)

    async def make_pod(self, name: str, owner_uid: str, **status: Any) -> JsonObject:
        labels = {"ray.io/cluster": NAME, "ray.io/node-type": "head"}
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": NAME, "uid": owner_uid}
        head = PODS.head(name, labels=labels, ownerReferences=[owner])
        await self.api.create(PODS, {**head, "spec": {"containers": [{"name": "ray-head"}]}})
        return await self.api.patch(PODS, name, {"status": status}, subresource="status")

    async def set_status(self, **status: Any) -> None:
        await self.api.patch(RAY_CLUSTERS, NAME, {"status": status}, subresource="status")

    async def make_ready(self) -> None:
        await self.make_head(phase="Running", podIP="10.0.0.7", containerStatuses=[running()])
        conditions = [{"type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady"}]
        generation = (await self.cluster())["metadata"]["generation"]
        head = {"podIP": "10.0.0.7", "podName": HEAD}
        await self.set_status(state="ready", conditions=conditions, head=head, observedGeneration=generation)

    async def say_event(self, kind: str, name: str, uid: str, reason: str, message: str) -> None:
        target = {"kind": kind, "name": name, "uid": uid}
        body = {**EVENTS.head(f"e-{reason.lower()}"), "involvedObject": target, "reason": reason, "message": message}
        await self.api.create(EVENTS, body)

    def ensure(self, settings: ClusterSettings = SETTINGS, run_id: str = "r", **more: Any) -> "asyncio.Task[RayHead]":
        options = {"patience": BRIEF, **more}
        return asyncio.create_task(ensure(self.api, ray_cluster(settings, run_id), self.said.append, **options))


def running(restarts: int = 0, **last: Any) -> JsonObject:
    return {"name": "ray-head", "restartCount": restarts, "state": {"running": {}}, "lastState": last}


def waiting(reason: str, message: str) -> JsonObject:
    return {"name": "ray-head", "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}


@pytest_asyncio.fixture
async def kuberay() -> AsyncIterator[KubeRay]:
    async with KubeApiServer(pods=PodRuntime(starts_pods=False), bookmark_seconds=0.2) as server:
        settings = KubeClientSettings(requests_per_second=5000, request_burst=5000, retry_seconds=5)
        async with KubeClient(FixedCredentials(Access(server.address)), settings) as api:
            yield KubeRay(api, server)


async def test_it_is_made_for_its_workflow_and_awaited_until_its_head_serves(kuberay: KubeRay) -> None:
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "w", "uid": "u"}}
    task = kuberay.ensure(owner=owner)
    made = await kuberay.cluster()
    assert made["metadata"]["labels"]["agentic-rl/run"] == "r"
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == ["u"]
    assert not task.done()
    await kuberay.make_ready()
    head = await task
    assert (head.pod, head.dashboard) == (HEAD, "http://10.0.0.7:8265")


async def test_a_second_call_finds_it_and_makes_nothing(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    await kuberay.make_ready()
    first, before = await task, await kuberay.cluster()
    assert await kuberay.ensure() == first
    assert uid_of(await kuberay.cluster()) == uid_of(before)


async def test_one_that_somebody_applied_as_it_is_rendered_is_found_and_not_replaced(kuberay: KubeRay) -> None:
    applied = await kuberay.api.apply(RAY_CLUSTERS, stamped(ray_cluster(SETTINGS, "r")))
    task = kuberay.ensure()
    await kuberay.make_ready()
    await task
    assert uid_of(await kuberay.cluster()) == uid_of(applied)


async def test_one_of_this_run_from_other_settings_is_replaced_with_its_pods(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    await kuberay.make_ready()
    await task
    before = uid_of(await kuberay.cluster())
    changed = SETTINGS.model_copy(update={"trainer_image": "another:1"})
    task = kuberay.ensure(changed)
    async with asyncio.timeout(20):
        while uid_of(await kuberay.cluster()) == before:
            await asyncio.sleep(0.01)
    assert (await kuberay.api.list(PODS)).items == (), "the old head is gone before a new one is asked for"
    await kuberay.make_ready()
    await task
    assert any("made from other settings" in line for line in kuberay.said)


async def test_what_an_earlier_cluster_left_has_to_be_gone_before_another_is_made(kuberay: KubeRay) -> None:
    """Somebody deleted the RayCluster; its head gets two minutes to end, and trains meanwhile."""
    await kuberay.make_pod("old-head", "earlier", phase="Running", podIP="10.0.0.6")
    await kuberay.make_pod("ended", "earlier", phase="Failed")
    task = kuberay.ensure()
    async with asyncio.timeout(20):
        while not kuberay.said:
            await asyncio.sleep(0.01)
    assert kuberay.said == [f"waiting for the end of what an earlier RayCluster {NAME} left: old-head"]
    assert (await kuberay.api.list(RAY_CLUSTERS)).items == ()
    await kuberay.api.delete(PODS, "old-head")
    await kuberay.make_ready()
    await task


async def test_pods_that_do_not_go_are_named_and_no_second_head_is_made(kuberay: KubeRay) -> None:
    await kuberay.make_pod("old-head", "earlier", phase="Running")
    with pytest.raises(RayClusterLostError, match="kubectl delete pod --force old-head; two heads"):
        await kuberay.ensure(patience=replace(BRIEF, gone_seconds=0.2))
    assert (await kuberay.api.list(RAY_CLUSTERS)).items == ()


async def test_one_of_another_run_or_of_a_person_is_refused_and_never_removed(kuberay: KubeRay) -> None:
    task = kuberay.ensure(run_id="theirs")
    await kuberay.make_ready()
    await task
    with pytest.raises(OtherRunError, match="belongs to run theirs"):
        await kuberay.ensure()
    assert not await remove(kuberay.api, NAME, "r")
    assert await remove(kuberay.api, NAME, "theirs")
    assert not await remove(kuberay.api, NAME, "theirs")
    await kuberay.api.create(RAY_CLUSTERS, {**RAY_CLUSTERS.head(NAME), "spec": {}})
    with pytest.raises(ForeignObjectError, match="was not made by this project"):
        await kuberay.ensure()
    assert not await remove(kuberay.api, NAME, "r")


async def test_of_two_runs_that_begin_at_the_same_moment_one_has_it_and_the_other_is_told(kuberay: KubeRay) -> None:
    """Neither finds one, so both apply theirs; the second's stays."""
    task = kuberay.ensure()
    await kuberay.cluster()
    await asyncio.sleep(0.1)
    await kuberay.api.apply(RAY_CLUSTERS, ray_cluster(SETTINGS, "another"))
    with pytest.raises(OtherRunError, match="taken over by run another"):
        await task


async def test_ready_is_not_believed_while_the_head_is_not_or_workers_are_missing(kuberay: KubeRay) -> None:
    """KubeRay's state stays `ready` once it was; conditions and counts follow the pods."""
    task = kuberay.ensure()
    await kuberay.make_ready()
    await task
    down = [{"type": "HeadPodReady", "status": "False", "reason": "ContainersNotReady"}]
    await kuberay.set_status(conditions=down)
    task = kuberay.ensure()
    await asyncio.sleep(0.3)
    up = [{"type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady"}]
    await kuberay.set_status(conditions=up, desiredWorkerReplicas=2, readyWorkerReplicas=1)
    await asyncio.sleep(0.3)
    assert not task.done()
    await kuberay.set_status(readyWorkerReplicas=2)
    await task


async def test_workers_are_counted_by_what_was_asked_for(kuberay: KubeRay) -> None:
    """A status that does not know of them yet says that none is wanted."""
    workers = SETTINGS.workers.model_copy(update={"replicas": 2})
    task = kuberay.ensure(SETTINGS.model_copy(update={"workers": workers}))
    await kuberay.make_ready()
    await kuberay.set_status(desiredWorkerReplicas=0)
    await asyncio.sleep(0.3)
    assert not task.done()
    await kuberay.set_status(desiredWorkerReplicas=2, readyWorkerReplicas=2)
    await task


PULL = 'Back-off pulling image "agentic-rl/trainer:0.1.0": ErrImagePull: failed to resolve: not found'


async def test_an_image_that_is_not_there_ends_the_wait_by_name(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    await kuberay.make_head(phase="Pending", containerStatuses=[waiting("ImagePullBackOff", PULL)])
    with pytest.raises(RayClusterError, match=r"^image-missing: pod raycluster-verl-head-abcde.*not found.*: "):
        await task


async def test_what_may_pass_is_waited_for_and_then_named(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    await kuberay.make_head(phase="Pending", conditions=[scheduled])
    with pytest.raises(RayClusterLostError, match="no-room-for-gpu"):
        await task
    assert any("no-room-for-gpu" in line for line in kuberay.said), "it is said as soon as it is seen"


async def test_what_the_operator_cannot_make_is_named_by_its_events_but_not_by_old_ones(kuberay: KubeRay) -> None:
    said = (
        'Failed to create head Pod default/x, pods "x" is forbidden: exceeded quota: q, requested: cpu=50, used: cpu=0'
    )
    task = kuberay.ensure(patience=replace(BRIEF, start_seconds=1.5))
    cluster = await kuberay.cluster()
    await kuberay.set_status(observedGeneration=cluster["metadata"]["generation"])
    await kuberay.say_event("RayCluster", NAME, "an-earlier-one", "FailedToCreateHeadPod", said)
    with pytest.raises(RayClusterLostError, match="no trouble has a name"):
        await task
    await kuberay.api.delete(EVENTS, "e-failedtocreateheadpod")
    await kuberay.say_event("RayCluster", NAME, uid_of(cluster), "FailedToCreateHeadPod", said)
    with pytest.raises(RayClusterLostError, match="quota"):
        await kuberay.ensure()


async def test_a_trouble_that_stands_there_when_time_is_over_is_named(kuberay: KubeRay) -> None:
    task = kuberay.ensure(patience=replace(BRIEF, passing_seconds=60.0, start_seconds=0.5))
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    await kuberay.make_head(phase="Pending", conditions=[scheduled])
    with pytest.raises(RayClusterLostError, match=r"not ready after .* and no-room-for-gpu: pod "):
        await task


@pytest.mark.parametrize("status", [403, 503])
async def test_events_that_cannot_be_read_end_nothing(kuberay: KubeRay, status: int) -> None:
    """The account may lack the right, or the server's authorizer is away; what pods say is known all the same."""
    kuberay.server.faults.append(Fault(path="/events", status=status, times=10_000))
    task = kuberay.ensure()
    await kuberay.make_head(phase="Pending", containerStatuses=[waiting("ImagePullBackOff", PULL)])
    with pytest.raises(RayClusterError, match=r"^image-missing: "):
        await task
    assert any("events cannot be read" in line for line in kuberay.said)


@pytest.mark.parametrize(
    ("said", "status", "name"),
    [
        ("the server could not find the requested resource", 404, "kind-missing"),
        ('namespaces "default" not found', 404, "namespace-missing"),
        ('admission webhook "k.example" denied the request: no quota of GPUs', 400, "admission-refused"),
    ],
)
async def test_a_refusal_of_the_object_has_its_name(kuberay: KubeRay, said: str, status: int, name: str) -> None:
    kuberay.server.faults.append(Fault(method="PATCH", path="/rayclusters", status=status, message=said))
    with pytest.raises(RayClusterError, match=f"^{name}: RayCluster {NAME}: "):
        await kuberay.ensure()


async def test_an_operator_that_is_not_there_is_named(kuberay: KubeRay) -> None:
    """It may be restarting, so that it is waited for like what may pass."""
    task = kuberay.ensure()
    with pytest.raises(RayClusterLostError, match=f"^controller-silent: raycluster {NAME}: KubeRay has not looked"):
        await task
    task = kuberay.ensure(patience=replace(BRIEF, passing_seconds=60.0))
    async with asyncio.timeout(20):
        while len([line for line in kuberay.said if "controller-silent" in line]) < 2:
            await asyncio.sleep(0.05)
    await kuberay.make_ready()
    await task


async def test_one_that_kuberay_gave_up_is_told_and_replaced_by_the_next_try(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    before = await kuberay.cluster()
    await kuberay.set_status(state="failed", reason="the head pod could not be built")
    with pytest.raises(RayClusterLostError, match="has failed: the head pod could not be built"):
        await task
    task = kuberay.ensure()
    async with asyncio.timeout(20):
        while uid_of(await kuberay.cluster()) == uid_of(before):
            await asyncio.sleep(0.01)
    await kuberay.make_ready()
    await task


async def test_one_that_a_person_suspended_is_an_error_and_one_in_a_queue_waits(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    await kuberay.cluster()
    await kuberay.set_status(state="suspended")
    with pytest.raises(RayClusterError, match="is suspended"):
        await task
    await remove(kuberay.api, NAME, "r")
    queued = SETTINGS.model_copy(update={"queue": "gpus"})
    task = kuberay.ensure(queued, patience=Patience(0.1, 0.1, 0.1, 0.1))
    assert (await kuberay.cluster())["metadata"]["labels"][QUEUE_LABEL] == "gpus"
    await kuberay.set_status(state="suspended")
    async with asyncio.timeout(20):
        while not any("queue" in line for line in kuberay.said):
            await asyncio.sleep(0.05)
    assert not task.done()
    await kuberay.make_ready()
    await task


async def test_one_that_is_deleted_meanwhile_is_told_at_once(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    await kuberay.cluster()
    await kuberay.api.delete(RAY_CLUSTERS, NAME)
    with pytest.raises(RayClusterLostError, match="was deleted while it started"):
        await task


async def test_the_loss_of_a_head_is_seen_and_named(kuberay: KubeRay) -> None:
    task = kuberay.ensure()
    await kuberay.make_ready()
    head = await task
    async with HeadWatch(kuberay.api, head) as watch:
        assert watch.loss() is None
        killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
        status = {"containerStatuses": [running(1, **killed)]}
        await kuberay.api.patch(PODS, HEAD, {"status": status}, subresource="status")
        async with asyncio.timeout(20):
            while watch.loss() is None:
                await asyncio.sleep(0.01)
        assert "started again" in str(watch.loss())
        assert "out-of-memory" in str(watch.loss()) or "OOMKilled" in str(watch.loss())
        await kuberay.api.delete(PODS, HEAD)
        async with asyncio.timeout(20):
            while "was deleted" not in str(watch.loss()):
                await asyncio.sleep(0.01)


def test_a_head_is_lost_with_its_pod_its_container_or_its_place() -> None:
    head = RayHead(NAME, HEAD, "u", "10.0.0.7", 0)
    alive: JsonObject = {
        "metadata": {"name": HEAD, "uid": "u"},
        "status": {"phase": "Running", "containerStatuses": [running()]},
    }
    assert loss_of(head, alive) is None
    assert "was deleted" in str(loss_of(head, None))
    assert "was deleted" in str(loss_of(head, {**alive, "metadata": {"name": HEAD, "uid": "another"}}))
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    assert "low on resource" in str(loss_of(head, {**alive, "status": evicted}))
    going = {"name": HEAD, "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert "being deleted" in str(loss_of(head, {**alive, "metadata": going}))


def test_what_restarts_beside_the_head_is_not_the_head() -> None:
    head = RayHead(NAME, HEAD, "u", "10.0.0.7", 0)
    beside = {"name": "istio-proxy", "restartCount": 3, "state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [beside, running()]}
    assert loss_of(head, {"metadata": {"name": HEAD, "uid": "u"}, "status": status}) is None


def test_a_head_that_is_on_its_way_out_or_an_earlier_clusters_is_no_head_to_begin_with() -> None:
    cluster = {"metadata": {"name": NAME, "uid": "c"}, "status": {"head": {"podIP": "10.0.0.7"}}}
    metadata = {"name": HEAD, "uid": "u", "labels": {"ray.io/node-type": "head"}, "ownerReferences": [{"uid": "c"}]}
    pod: JsonObject = {"metadata": metadata, "status": {"podIP": "10.0.0.7"}}
    assert head_of(cluster, {HEAD: pod}) == RayHead(NAME, HEAD, "u", "10.0.0.7", 0)
    assert (
        head_of(cluster, {HEAD: {**pod, "metadata": metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}}) is None
    )
    assert head_of(cluster, {HEAD: {**pod, "metadata": metadata | {"ownerReferences": [{"uid": "earlier"}]}}}) is None
