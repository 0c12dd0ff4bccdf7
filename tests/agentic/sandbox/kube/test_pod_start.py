"""Waiting for one pod, whoever made it."""

import asyncio

import pytest
from kube_rig import memory_rig

from agentic.cluster.resources import PODS
from agentic.sandbox.errors import SandboxStartError
from agentic.sandbox.kube.manifests import Resources
from agentic.sandbox.kube.owner import Owner
from agentic.sandbox.kube.source import Order
from agentic.sandbox.kube.starting import PodStart


async def test_a_pod_that_another_made_and_that_vanishes_once_seen_is_not_waited_for() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        api = rig.connect()
        owner = Owner(api, rig.settings, rig.run_id)
        await owner.start()
        try:
            order = Order(owner, "claimed", "claimed", rig.image, Resources(768, 1.0))
            starting = asyncio.create_task(PodStart(api, order, rig.settings, "claimed", is_known=False).wait())
            labels = {"agentic-rl/owner": owner.name}
            await rig.admin.create(
                PODS, {**PODS.head("claimed", labels=labels), "spec": {"containers": [{"name": "s"}]}}
            )
            async with asyncio.timeout(10):
                while "claimed" not in owner.pods.objects:
                    await asyncio.sleep(0.01)
            await rig.admin.delete(PODS, "claimed", grace_period_seconds=0)
            with pytest.raises(SandboxStartError, match="its pod was deleted"):
                await asyncio.wait_for(starting, 5)
        finally:
            await owner.close()
            await api.close()
