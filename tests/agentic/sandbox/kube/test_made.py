"""What an order made is known until it is removed, whatever a later try of the same order met."""

import pytest
from kube_rig import memory_rig

from agentic.cluster.errors import AlreadyExistsError
from agentic.cluster.resources import PODS
from agentic.sandbox.kube.manifests import Resources
from agentic.sandbox.kube.owner import Owner
from agentic.sandbox.kube.source import Made, Order


async def test_a_try_that_is_refused_leaves_what_an_earlier_one_made_known() -> None:
    async with memory_rig("pod") as rig:
        order = Order(Owner(rig.admin, rig.settings, rig.run_id), "one", "one", rig.image, Resources(768, 1.0))
        made, body = Made(rig.admin, PODS), {**PODS.head("one"), "spec": {"containers": [{"name": "s"}]}}
        await made.create(body)
        with pytest.raises(AlreadyExistsError):
            await made.create(body)
        assert made.knows(order)
        await made.delete(order)
        assert not [pod for pod in await rig.pods() if not pod["metadata"].get("deletionTimestamp")]


async def test_what_was_refused_at_the_first_try_is_nobodys_to_remove() -> None:
    async with memory_rig("pod") as rig:
        order = Order(Owner(rig.admin, rig.settings, rig.run_id), "one", "one", rig.image, Resources(768, 1.0))
        body = {**PODS.head("one"), "spec": {"containers": [{"name": "s"}]}}
        await rig.admin.create(PODS, body)
        made = Made(rig.admin, PODS)
        with pytest.raises(AlreadyExistsError):
            await made.create(body)
        assert not made.knows(order)
        await made.delete(order)
        assert len(await rig.pods()) == 1
