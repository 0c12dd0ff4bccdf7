"""Warm pools: taken from, filled again, as large as needed, and gone at the end."""

import asyncio
from typing import Any

import pytest
from kruise_controller import KruiseController
from kube_rig import Rig, memory_rig

from agentic.cluster.resources import JsonObject, name_of
from agentic.sandbox.base import Sandbox
from agentic.sandbox.errors import SandboxStartError

CLASS = {"by": "class", "minimum": 3, "spare": 0.0, "idle_seconds": 0.4}


def kruise_of(rig: Rig) -> KruiseController:
    assert isinstance(rig.controller, KruiseController)
    return rig.controller


async def pools(rig: Rig) -> tuple[JsonObject, ...]:
    assert rig.controller is not None
    kind = rig.controller.sets if isinstance(rig.controller, KruiseController) else rig.controller.pools
    return (await rig.admin.list(kind)).items


async def until_available(rig: Rig, count: int) -> JsonObject:
    async with asyncio.timeout(10):
        while True:
            found = await pools(rig)
            status: dict[str, Any] = found[0].get("status", {}) if found else {}
            if max(status.get("availableReplicas", 0), status.get("readyReplicas", 0)) == count:
                return found[0]
            await asyncio.sleep(0.02)


async def take(rig: Rig, name: str, image: str) -> Sandbox:
    rig.image = image
    return await rig.provider.acquire(rig.spec(name))


async def test_one_pool_serves_all_tasks_of_a_class_by_changing_the_image_in_place() -> None:
    async with memory_rig("kruise", pool=CLASS) as rig:
        await take(rig, "zero", "base:1")
        for number in range(3):
            await until_available(rig, 3)
            warm = {name_of(pod) for pod in await rig.pods()}
            sandbox = await take(rig, f"s{number}", f"task-{number}:1")
            (pod,) = [pod for pod in await rig.pods() if pod["spec"]["containers"][0]["image"] == f"task-{number}:1"]
            assert name_of(pod) in warm
            assert (await sandbox.exec("echo hi")).text == "hi\n"
        (pool,) = await pools(rig)
        assert name_of(pool) == "agentic-768mb-1000m"


async def test_each_class_of_resources_has_a_pool() -> None:
    async with memory_rig("kruise", pool=CLASS) as rig:
        await rig.provider.acquire(rig.spec("small"))
        await rig.provider.acquire(rig.spec("large", memory_mb=2048, cpus=2))
        limits = [
            pool["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            for pool in await pools(rig)
        ]
        assert sorted(limits) == ["2048Mi", "768Mi"]


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_a_pool_of_a_task_is_named_after_it_and_has_the_rollouts_number(kind: str) -> None:
    async with memory_rig(kind, pool={"by": "task", "replicas": 4}) as rig:
        await take(rig, "one", "registry.example/swe-bench/astropy__astropy-12907:v1")
        pool = await until_available(rig, 4)
        assert name_of(pool) == "astropy-astropy-12907"
        assert pool["spec"]["replicas"] == 4
        others = [name_of(pod) for pod in await rig.pods() if name_of(pod).startswith("astropy-astropy-12907-")]
        assert len(others) >= 4


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_two_runs_have_pools_of_their_own_for_the_same_task(kind: str) -> None:
    async with memory_rig(kind, pool={"by": "task", "replicas": 1}) as rig:
        other = rig.another()
        rig.image = "swe-bench/a__a-1:v1"
        await rig.provider.acquire(rig.spec("one"))
        kept = await other.acquire(rig.spec("two", run_id="other-run"))
        assert len({name_of(pool) for pool in await pools(rig)}) == 2
        await rig.provider.close()
        assert (await kept.exec("echo here")).text == "here\n"
        assert len(await pools(rig)) == 1
        await other.close()
        assert await pools(rig) == ()


async def test_a_pool_grows_with_demand_shrinks_when_idle_and_is_scaled_by_its_subresource() -> None:
    settings = {"by": "class", "minimum": 0, "spare": 1.0, "idle_seconds": 0.4}
    async with memory_rig("kruise", pool=settings) as rig:
        assert rig.server is not None
        sandboxes = await asyncio.gather(*(rig.provider.acquire(rig.spec(f"s{number}")) for number in range(6)))
        await until_available(rig, 6)
        await asyncio.gather(*(sandbox.release() for sandbox in sandboxes))
        await until_available(rig, 0)
        writes = [one for one in rig.server.requests if "/sandboxsets/" in one and one.startswith(("PATCH", "PUT"))]
        ours = [one for one in writes if not one.endswith("/status")]
        assert ours
        assert all(one.endswith("/scale") for one in ours)


async def test_a_pool_that_was_deleted_is_made_anew() -> None:
    async with memory_rig("kruise", pool={"by": "class", "spare": 0.0, "minimum": 1, "idle_seconds": 0.4}) as rig:
        await rig.provider.acquire(rig.spec("one"))
        (pool,) = await pools(rig)
        await rig.admin.delete(kruise_of(rig).sets, name_of(pool))
        await asyncio.gather(
            *(rig.provider.acquire(rig.spec(f"s{number}")) for number in range(4)), return_exceptions=True
        )
        async with asyncio.timeout(10):
            while not await pools(rig):
                await asyncio.sleep(0.05)
        await rig.provider.acquire(rig.spec("last"))


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_many_claims_at_once_get_a_sandbox_each(kind: str) -> None:
    async with memory_rig(kind) as rig:
        sandboxes = await asyncio.gather(*(rig.provider.acquire(rig.spec(f"s{number}")) for number in range(12)))
        await asyncio.gather(*(sandbox.exec(f"echo {n} > mine", cwd="/tmp") for n, sandbox in enumerate(sandboxes)))
        found = await asyncio.gather(*(sandbox.exec("cat mine", cwd="/tmp") for sandbox in sandboxes))
        assert [result.text for result in found] == [f"{number}\n" for number in range(12)]


async def test_a_claim_whose_label_two_sandboxes_carry_is_not_used() -> None:
    async with memory_rig("kruise", pool={"by": "task", "replicas": 1}) as rig:
        await rig.provider.acquire(rig.spec("one"))
        controller = kruise_of(rig)
        controller.is_claiming = False
        starting = asyncio.create_task(rig.provider.acquire(rig.spec("two")))
        async with asyncio.timeout(10):
            while len(claims := (await rig.admin.list(controller.claims)).items) < 2:
                await asyncio.sleep(0.02)
        claim = next(one for one in claims if not one.get("status"))
        for number in range(2):
            labels = {"agents.kruise.io/claim-name": name_of(claim)}
            head = controller.sandboxes.head(f"wrong-{number}", labels=labels)
            await rig.admin.create(controller.sandboxes, {**head, "spec": {"template": {"spec": {"containers": []}}}})
        status = {"phase": "Completed", "claimedReplicas": 1}
        await rig.admin.patch(controller.claims, name_of(claim), {"status": status}, subresource="status")
        with pytest.raises(SandboxStartError, match=r"has 2 sandboxes \(wrong-0, wrong-1\) but exactly one"):
            await starting


async def test_a_claim_that_gets_nothing_says_so_and_leaves_nothing() -> None:
    async with memory_rig("kruise", pool={"by": "task", "replicas": 0}, start_timeout_seconds=1) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        with pytest.raises(SandboxStartError, match="Timeout reached after 1s, claimed 0/1 sandboxes"):
            await rig.provider.acquire(rig.spec("one"))
        async with asyncio.timeout(10):
            while await rig.pods():
                await asyncio.sleep(0.05)


async def test_an_image_that_cannot_be_taken_in_place_is_infra() -> None:
    async with memory_rig("kruise", pool=CLASS) as rig:
        await take(rig, "zero", "base:1")
        kruise_of(rig).unpullable.add("task:1")
        with pytest.raises(SandboxStartError, match="claimed 0/1 sandboxes"):
            await take(rig, "one", "task:1")
        await take(rig, "two", "task:2")


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_a_controller_that_is_not_there_is_waited_for_and_then_named(kind: str) -> None:
    async with memory_rig(kind, start_timeout_seconds=0.5) as rig:
        assert rig.controller is not None
        rig.controller.is_claiming = False
        with pytest.raises(SandboxStartError, match=r"was not claimed in time: .*(not answered|has not answered)"):
            await asyncio.wait_for(rig.provider.acquire(rig.spec("one")), 15)


async def test_a_warm_pool_that_is_gone_is_named() -> None:
    async with memory_rig("agent-sandbox", start_timeout_seconds=1.0, pool={"by": "task", "replicas": 0}) as rig:
        assert rig.controller is not None
        await rig.provider.acquire(rig.spec("one"))
        (pool,) = await pools(rig)
        await rig.admin.delete(rig.controller.pools, name_of(pool))  # type: ignore[union-attr]
        with pytest.raises(SandboxStartError, match='WarmPoolNotFound: SandboxWarmPool "base" not found'):
            await rig.provider.acquire(rig.spec("two"))
