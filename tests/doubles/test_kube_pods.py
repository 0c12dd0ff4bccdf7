"""The kubelet's double ends, whenever it is asked to."""

import asyncio

import pytest
from kube_pods import PodRuntime
from kube_store import KubeStore


@pytest.mark.parametrize("turns", range(6))
async def test_it_closes_at_any_point_of_a_pods_start(turns: int) -> None:
    runtime, store = PodRuntime(), KubeStore()
    runtime.attach(store)
    store.create(("pods", "ours", "one"), {"metadata": {"name": "one", "namespace": "ours"}, "spec": {}})
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await runtime.close()
