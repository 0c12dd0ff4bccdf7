"""A cluster under pressure: what may pass is waited out or retried, the rest is infra with its reason in one line."""

import asyncio
import time
from typing import Any

import pytest
from kube_api import Fault
from kube_rig import KINDS, Rig, memory_rig
from kube_store import Refusal

from agentic.cluster.resources import EVENTS, PODS, JsonObject, name_of
from agentic.sandbox.base import ExecResult, Sandbox
from agentic.sandbox.errors import SandboxExhaustedError, SandboxLostError, SandboxSetupError, SandboxStartError

NO_ROOM = "0/3 nodes are available: 3 Insufficient cpu."
BACK_OFF = 'Back-off pulling image "swe-bench/none:1"'


async def first_pod(rig: Rig) -> str:
    async with asyncio.timeout(10):
        while not (found := await rig.pods()):
            await asyncio.sleep(0.01)
    return name_of(found[0])


async def write_status(rig: Rig, pod: str, **status: Any) -> None:
    await rig.admin.patch(PODS, pod, {"status": status}, subresource="status")


def condition(kind: str, status: str, reason: str, message: str) -> list[JsonObject]:
    return [{"type": kind, "status": status, "reason": reason, "message": message}]


def container(**state: Any) -> list[JsonObject]:
    return [{"name": "sandbox", "ready": "running" in state, "state": state, "image": "agentic/base:local"}]


RUNNING = {"phase": "Running", "containerStatuses": container(running={})}


async def start_by_hand(rig: Rig) -> "tuple[asyncio.Task[Sandbox], str]":
    """A sandbox whose pod does what the test says."""
    assert rig.server is not None
    rig.server.pods.starts_pods = False
    starting = asyncio.create_task(rig.provider.acquire(rig.spec("one")))
    return starting, await first_pod(rig)


async def test_a_pod_that_waits_for_room_is_waited_for() -> None:
    async with memory_rig("pod") as rig:
        starting, pod = await start_by_hand(rig)
        await write_status(rig, pod, conditions=condition("PodScheduled", "False", "Unschedulable", NO_ROOM))
        await asyncio.sleep(0.2)
        assert not starting.done()
        await write_status(rig, pod, **RUNNING, conditions=[])
        await starting


async def test_a_pod_that_never_gets_room_says_why_and_is_removed() -> None:
    async with memory_rig("pod", start_timeout_seconds=0.5) as rig:
        starting, pod = await start_by_hand(rig)
        await write_status(rig, pod, conditions=condition("PodScheduled", "False", "Unschedulable", NO_ROOM))
        with pytest.raises(SandboxStartError, match=r"not started in time: no node has room \(0/3 nodes are available"):
            await starting
        assert await rig.pods() == ()


async def test_the_events_of_a_pod_that_hangs_are_told() -> None:
    async with memory_rig("pod", start_timeout_seconds=0.5) as rig:
        starting, pod = await start_by_hand(rig)
        event = {
            **EVENTS.head("e1"),
            "involvedObject": {"kind": "Pod", "name": pod},
            "reason": "FailedCreatePodSandBox",
            "message": 'Failed to create pod sandbox: rpc error: plugin type="bridge" failed',
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        await rig.admin.create(EVENTS, event)
        with pytest.raises(SandboxStartError, match="FailedCreatePodSandBox: Failed to create pod sandbox: rpc error"):
            await starting


async def test_an_image_that_is_pulled_at_last_is_waited_for_and_one_that_is_not_is_given_up_sooner() -> None:
    async with memory_rig("pod", unpullable_seconds=1.0) as rig:
        starting, pod = await start_by_hand(rig)
        await write_status(rig, pod, containerStatuses=container(waiting={"reason": "ErrImagePull", "message": "EOF"}))
        await asyncio.sleep(0.3)
        await write_status(rig, pod, **RUNNING)
        sandbox = await starting
        await sandbox.release()
        starting, pod = await start_by_hand(rig)
        back_off = container(waiting={"reason": "ImagePullBackOff", "message": BACK_OFF})
        await write_status(rig, pod, containerStatuses=back_off)
        began = time.monotonic()
        with pytest.raises(SandboxStartError, match=r"the image cannot be pulled: .* \(Back-off pulling image"):
            await starting
        assert time.monotonic() - began < 5.0


LOSSES: dict[str, tuple[dict[str, Any], str]] = {
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "},
        r"it was evicted \(The node was low on resource: memory\.\)",
    ),
    "out of memory": (
        {"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 137, "reason": "OOMKilled"})},
        "it was killed because memory ran out, within its limit or on its node",
    ),
    "lease": (
        {
            "phase": "Failed",
            "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline",
        },
        "its lease has run out",
    ),
    "node": (
        {
            "conditions": condition("Ready", "False", "NodeStatusUnknown", "Kubelet stopped posting node status."),
            **RUNNING,
        },
        "its node does not answer",
    ),
}


OWN_DOING = {
    "out of memory that was set aside for it": LOSSES["out of memory"][0],
    "out of disk": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
    },
}


async def run_and_lose(rig: Rig, sandbox: Sandbox, status: dict[str, Any]) -> ExecResult:
    assert rig.server is not None
    running = asyncio.create_task(sandbox.exec("echo begun > /tmp/begun; sleep 30"))
    while (await sandbox.exec("test -s /tmp/begun")).exit_code != 0:
        await asyncio.sleep(0.02)
    (pod,) = await rig.pods()
    await write_status(rig, name_of(pod), **status)
    rig.server.pods.kill(pod["metadata"]["uid"], drop=True)
    return await running


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_sandbox_that_is_lost_under_a_command_says_why_and_stays_lost(loss: str) -> None:
    status, reason = LOSSES[loss]
    async with memory_rig("pod") as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        with pytest.raises(SandboxLostError, match=reason):
            await run_and_lose(rig, sandbox, status)
        with pytest.raises(SandboxLostError, match=reason) as raised:
            await sandbox.exec("true")
        assert not isinstance(raised.value, SandboxExhaustedError)


@pytest.mark.parametrize("loss", OWN_DOING)
async def test_a_sandbox_that_went_over_its_own_limits_says_that_it_was_its_own_doing(loss: str) -> None:
    async with memory_rig("pod", memory_mb=256, request_memory_mb=256) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        with pytest.raises(SandboxExhaustedError):
            await run_and_lose(rig, sandbox, OWN_DOING[loss])
        with pytest.raises(SandboxExhaustedError):
            await sandbox.exec("true")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sandbox_whose_pod_is_deleted_is_lost(kind: str) -> None:
    no_pool = {} if kind == "pod" else {"pool": {"by": "task", "replicas": 0}}
    async with memory_rig(kind, **no_pool) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        (pod,) = await rig.pods()
        await rig.admin.delete(PODS, name_of(pod))
        with pytest.raises(SandboxLostError, match="its pod was deleted"):
            await sandbox.exec("true")


@pytest.mark.parametrize("status", [429, 500, 503, 504, 0])
async def test_an_api_server_that_fails_for_a_while_costs_time_and_nothing_else(status: int) -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(method="POST", path=r"/pods\?", status=status, times=3, retry_after_seconds=0))
        sandbox = await rig.provider.acquire(rig.spec("one"))
        assert rig.server.faults[0].times == 0
        assert len(await rig.pods()) == 1
        assert (await sandbox.exec("echo hi")).text == "hi\n"


async def test_a_pod_whose_creation_was_answered_too_late_is_made_once() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(method="POST", path=r"/pods\?", status=504, times=1, after=True))
        await rig.provider.acquire(rig.spec("one"))
        assert len(await rig.pods()) == 1


async def test_a_watch_that_expired_is_begun_anew() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        await (await rig.provider.acquire(rig.spec("one"))).release()
        rig.server.faults.append(
            Fault(path="watch=true", status=410, times=2, message="too old resource version: 1 (2)")
        )
        rig.server.store.compact()
        sandbox = await rig.provider.acquire(rig.spec("two"))
        assert (await sandbox.exec("echo hi")).text == "hi\n"


async def test_a_quota_without_room_is_waited_for() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.store.quotas["pods"] = 1
        first = await rig.provider.acquire(rig.spec("one"))
        starting = asyncio.create_task(rig.provider.acquire(rig.spec("two")))
        await asyncio.sleep(0.4)
        assert not starting.done()
        await first.release()
        assert (await (await starting).exec("echo hi")).text == "hi\n"


async def test_a_quota_that_never_has_room_is_infra_in_time() -> None:
    async with memory_rig("pod", start_timeout_seconds=0.5) as rig:
        assert rig.server is not None
        rig.server.store.quotas["pods"] = 0
        with pytest.raises(SandboxStartError, match="exceeded quota"):
            await rig.provider.acquire(rig.spec("two"))


async def test_images_that_cannot_be_pulled_keep_no_other_sandbox_from_starting() -> None:
    async with memory_rig("pod", start_concurrency=2, unpullable_seconds=30) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        stuck = [asyncio.create_task(rig.provider.acquire(rig.spec(f"bad-{number}"))) for number in range(2)]
        async with asyncio.timeout(10):
            while len(await rig.pods()) < 2:
                await asyncio.sleep(0.02)
        good = asyncio.create_task(rig.provider.acquire(rig.spec("good")))
        back_off = container(waiting={"reason": "ImagePullBackOff", "message": BACK_OFF})
        for pod in await rig.pods():
            await write_status(rig, name_of(pod), containerStatuses=back_off)
        async with asyncio.timeout(10):
            while len(pods := await rig.pods()) < 3:
                await asyncio.sleep(0.02)
        (pod,) = [pod for pod in pods if name_of(pod).startswith("good")]
        await write_status(rig, name_of(pod), **RUNNING)
        await asyncio.wait_for(good, 10)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_what_no_other_pod_would_do_better_is_a_matter_of_setup() -> None:
    async with memory_rig("pod") as rig:
        starting, pod = await start_by_hand(rig)
        invalid = container(waiting={"reason": "InvalidImageName", "message": "invalid reference format"})
        await write_status(rig, pod, containerStatuses=invalid)
        with pytest.raises(SandboxSetupError, match="what is set as image is no image name"):
            await starting


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_a_controller_that_is_not_installed_is_a_matter_of_setup(kind: str) -> None:
    async with memory_rig(kind) as rig:
        assert rig.server is not None
        said = "the server could not find the requested resource"
        rig.server.faults.append(Fault(path="sandbox(sets|templates|claims)", status=404, times=1000, message=said))
        with pytest.raises(SandboxSetupError, match=r"python -m agentic\.sandbox check"):
            await rig.provider.acquire(rig.spec("one"))


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (
            403,
            'admission webhook "images.example" denied the request: image i:1 is not signed',
            "refused by the cluster's admission: admission webhook",
        ),
        (
            403,
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            "violates PodSecurity",
        ),
    ],
)
async def test_a_webhook_that_refuses_is_infra(status: int, message: str, reason: str) -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None

        def refuse(verb: str, plural: str, body: JsonObject) -> JsonObject:
            if plural == "pods" and verb == "create":
                raise Refusal(status, "Forbidden", message)
            return body

        rig.server.store.admit.append(refuse)
        with pytest.raises(SandboxStartError, match=reason):
            await rig.provider.acquire(rig.spec("one"))
        rig.server.store.admit.clear()
        await rig.provider.acquire(rig.spec("one"))


async def test_a_webhook_that_does_not_answer_is_tried_again() -> None:
    said = 'Internal error occurred: failed calling webhook "m.example": context deadline exceeded'
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(method="POST", path=r"/pods\?", status=500, times=2, message=said))
        await rig.provider.acquire(rig.spec("one"))


async def test_admission_that_weakens_a_sandbox_is_refused_and_leaves_nothing() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None

        def inject(verb: str, plural: str, body: JsonObject) -> JsonObject:
            if plural == "pods" and verb == "create":
                body["spec"]["containers"].append({"name": "sidecar", "image": "s:1"})
            return body

        rig.server.store.admit.append(inject)
        with pytest.raises(SandboxSetupError, match="container sidecar was added"):
            await rig.provider.acquire(rig.spec("one"))
        assert await rig.pods() == ()


async def test_a_missing_right_is_a_matter_of_setup() -> None:
    said = 'pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods" in API group "" in the'
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(method="POST", path=r"/pods\?", status=403, times=1, message=said))
        with pytest.raises(SandboxSetupError, match="system:serviceaccount:a:b may not create pods"):
            await rig.provider.acquire(rig.spec("one"))
