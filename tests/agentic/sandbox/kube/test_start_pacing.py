"""How many sandboxes start at once, in all and on each node."""

import asyncio

from kube_rig import Rig, kube_settings, memory_rig

from agentic.cluster.resources import PODS, JsonObject, name_of
from agentic.sandbox.base import Sandbox
from agentic.sandbox.kube.pacing import FORGOTTEN_SECONDS, Gate, starts_allowed

RUNNING: JsonObject = {
    "phase": "Running",
    "containerStatuses": [
        {"name": "sandbox", "ready": True, "state": {"running": {}}, "image": "agentic/base:local"},
    ],
}


async def test_starts_are_bounded_for_each_node_and_in_all() -> None:
    settings = kube_settings("pod", starts_per_node=3, start_concurrency=8)
    now = 0.0
    gate = Gate(settings, lambda: now)
    allowed = [gate.allowed]
    for node in ("a", "a", "b", "c", "d"):
        now += 100
        gate.see(node)
        allowed.append(gate.allowed)
    assert starts_allowed(settings, 0) == 3
    assert allowed == [3, 3, 3, 6, 8, 8]
    now += FORGOTTEN_SECONDS - 150
    assert gate.allowed == 6, "a and b may have been removed"
    now += FORGOTTEN_SECONDS
    assert gate.allowed == 3


async def test_a_node_on_which_enough_start_is_full_until_one_of_them_has_left() -> None:
    gate = Gate(kube_settings("pod", starts_per_node=2, start_concurrency=8))
    async with gate.starting() as first, gate.starting() as second:
        first.land("a")
        assert gate.full == ()
        second.land("a")
        second.land("a")
        assert gate.full == ("a",)
        second.leave()
        second.leave()
        assert gate.full == ()
        async with gate.starting() as third:
            third.land("a")
            assert gate.full == ("a",)
    assert gate.full == ()


class Hand:
    """Places and starts a rig's pods."""

    def __init__(self, rig: Rig) -> None:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        self._rig = rig
        self._known: set[str] = set()

    async def next_pod(self) -> JsonObject:
        """One that was made since."""
        async with asyncio.timeout(10):
            while not (new := [pod for pod in await self._rig.pods() if name_of(pod) not in self._known]):
                await asyncio.sleep(0.01)
        self._known.add(name_of(new[0]))
        return new[0]

    async def place(self, pod: JsonObject, node: str) -> None:
        await self._rig.admin.patch(PODS, name_of(pod), {"spec": {"nodeName": node}})

    async def run(self, pod: JsonObject) -> None:
        await self._rig.admin.patch(PODS, name_of(pod), {"status": RUNNING}, subresource="status")

    def ask(self, name: str) -> "asyncio.Task[Sandbox]":
        return asyncio.create_task(self._rig.provider.acquire(self._rig.spec(name)))


async def test_the_next_pod_is_asked_to_go_elsewhere_than_where_enough_start() -> None:
    async with memory_rig("pod", starts_per_node=1, start_concurrency=2) as rig:
        hand = Hand(rig)
        for node in ("a", "b"):
            starting = hand.ask(f"on-{node}")
            pod = await hand.next_pod()
            assert "affinity" not in pod["spec"]
            await hand.place(pod, node)
            await hand.run(pod)
            await starting
        third = hand.ask("third")
        slow = await hand.next_pod()
        await hand.place(slow, "a")
        await asyncio.sleep(0.2)
        fourth = hand.ask("fourth")
        pod = await hand.next_pod()
        (preferred,) = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (said,) = preferred["preference"]["matchExpressions"]
        assert (said["key"], said["operator"], said["values"]) == ("kubernetes.io/hostname", "NotIn", ["a"])
        for waiting in (slow, pod):
            await hand.run(waiting)
        await asyncio.gather(third, fourth)


async def test_no_more_sandboxes_start_at_once_than_allowed() -> None:
    async with memory_rig("pod", start_concurrency=2) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        starting = [asyncio.create_task(rig.provider.acquire(rig.spec(f"s{number}"))) for number in range(6)]
        await Hand(rig).next_pod()
        await asyncio.sleep(0.3)
        assert len(await rig.pods()) == 2
        while not all(task.done() for task in starting):
            for pod in await rig.pods():
                if not pod.get("status"):
                    await rig.admin.patch(PODS, name_of(pod), {"status": RUNNING}, subresource="status")
            await asyncio.sleep(0.02)
        assert len(await rig.pods()) == 6
