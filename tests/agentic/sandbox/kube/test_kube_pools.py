"""Warm pools: taken from, filled again, as large as needed, and gone at the end."""

import asyncio
from typing import Any

import pytest
from kruise_controller import KruiseController
from kube_api import Fault
from kube_rig import CLIENT, Rig, memory_rig

from agentic.cluster.resources import JOBS, JsonObject, Resource, name_of
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
async def test_one_sandbox_after_the_other_is_a_warm_one_since_its_pool_is_filled_again(kind: str) -> None:
    async with memory_rig(kind, pool={"by": "task", "replicas": 2}) as rig:
        rig.image = "swe-bench/a__a-1:v1"
        await rig.provider.acquire(rig.spec("first"))
        for number in range(4):
            await until_available(rig, 2)
            warm = {name_of(pod) for pod in await rig.pods()}
            sandbox = await rig.provider.acquire(rig.spec(f"s{number}"))
            assert {used.taken.pod for used in rig.provider._in_use.values()} <= warm
            await sandbox.release()


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


@pytest.mark.parametrize(("kind", "path"), [("kruise", "sandboxsets"), ("agent-sandbox", "sandboxwarmpools")])
async def test_a_pool_that_was_made_although_every_answer_was_lost_is_known_again(kind: str, path: str) -> None:
    hasty = CLIENT.model_copy(update={"retry_seconds": 0.2})
    async with memory_rig(kind, client=hasty) as rig:
        assert rig.server is not None
        rig.server.faults += [
            Fault("POST", f"{path}[?]", status=503, times=1000, after=True),
            Fault("GET", f"{path}/", status=503, times=1000),
        ]
        with pytest.raises(SandboxStartError, match="injected"):
            await rig.provider.acquire(rig.spec("one"))
        assert len(await pools(rig)) == 1
        rig.server.faults.clear()
        await rig.provider.acquire(rig.spec("one"))
        assert len(await pools(rig)) == 1
        await rig.provider.close()
        assert await pools(rig) == ()


async def until_refused(rig: Rig, count: int) -> None:
    """Until so many claims have been completed for want of their pool, each one's name counted once."""
    refused: set[str] = set()
    async with asyncio.timeout(10):
        while len(refused) < count:
            claims = (await rig.admin.list(kruise_of(rig).claims)).items
            refused |= {name_of(one) for one in claims if one.get("status", {}).get("phase") == "Completed"}
            await asyncio.sleep(0.01)


async def test_a_pool_that_the_controller_does_not_see_yet_is_claimed_from_again() -> None:
    async with memory_rig("kruise", pool=CLASS) as rig:
        kruise_of(rig).sees_sets = False
        starting = [asyncio.create_task(rig.provider.acquire(rig.spec(f"s{number}"))) for number in range(3)]
        await until_refused(rig, 3)
        kruise_of(rig).sees_sets = True
        sandboxes = await asyncio.gather(*starting)
        assert [(await sandbox.exec("echo hi")).text for sandbox in sandboxes] == ["hi\n"] * 3
        assert len(await pools(rig)) == 1


async def test_a_pool_that_the_controller_never_sees_is_named_in_time_and_leaves_no_claim() -> None:
    async with memory_rig("kruise", pool=CLASS, start_timeout_seconds=1) as rig:
        kruise_of(rig).sees_sets = False
        with pytest.raises(SandboxStartError, match=r"got no sandbox \(SandboxSet agentic-\S+ not found\)"):
            await asyncio.wait_for(rig.provider.acquire(rig.spec("one")), 10)
        assert (await rig.admin.list(kruise_of(rig).claims)).items == ()


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


async def all_objects(rig: Rig) -> list[tuple[Resource, str]]:
    """Everything that a pool of this kind is made of."""
    assert rig.controller is not None
    kruise = isinstance(rig.controller, KruiseController)
    kinds = [rig.controller.sets] if kruise else [rig.controller.pools, rig.controller.templates]  # type: ignore[union-attr]
    return [(kind, name_of(body)) for kind in kinds for body in (await rig.admin.list(kind)).items]


LOSSES = [("kruise", 0), ("agent-sandbox", 0), ("agent-sandbox", 1)]


@pytest.mark.parametrize(("kind", "index"), LOSSES)
async def test_a_pool_that_vanished_is_made_anew_for_who_asks_next_although_its_size_is_the_same(
    kind: str, index: int
) -> None:
    async with memory_rig(kind, start_timeout_seconds=5, pool={"by": "task", "replicas": 1}) as rig:
        await rig.provider.acquire(rig.spec("one"))
        resource, name = (await all_objects(rig))[index]
        await rig.admin.delete(resource, name)
        await asyncio.sleep(0.2)
        sandbox = await rig.provider.acquire(rig.spec("two"))
        assert (await sandbox.exec("echo hi")).text == "hi\n"
        assert (resource, name) in await all_objects(rig)


@pytest.mark.parametrize(("kind", "index"), LOSSES)
async def test_a_pool_that_is_gone_when_it_is_scaled_is_made_anew_and_the_end_still_removes_all(
    kind: str, index: int
) -> None:
    settings = {"by": "task", "replicas": 2, "idle_seconds": 0.4}
    async with memory_rig(kind, start_timeout_seconds=5, pool=settings) as rig:
        assert rig.server is not None
        first = await rig.provider.acquire(rig.spec("one"))
        resource, name = (await all_objects(rig))[index]
        await rig.admin.delete(resource, name)
        await first.release()
        await asyncio.sleep(0.8)
        await rig.provider.acquire(rig.spec("two"))
        await rig.provider.close()
        assert await all_objects(rig) == []
        assert (await rig.admin.list(JOBS)).items == ()


@pytest.mark.parametrize("pool", [{"by": "task", "replicas": 2}, {"by": "class"}], ids=["task", "class"])
@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_pools_go_on_after_their_owners_lease_was_taken_away(kind: str, pool: dict[str, Any]) -> None:
    if kind == "agent-sandbox" and pool["by"] == "class":
        return
    async with memory_rig(kind, renew_seconds=0.1, start_timeout_seconds=5, pool=pool) as rig:
        await rig.provider.acquire(rig.spec("one"))
        (job,) = (await rig.admin.list(JOBS)).items
        await rig.admin.delete(JOBS, name_of(job))
        async with asyncio.timeout(10):
            while not (jobs := (await rig.admin.list(JOBS)).items):
                await asyncio.sleep(0.05)
        for number in range(3):
            sandbox = await rig.provider.acquire(rig.spec(f"n{number}"))
            assert (await sandbox.exec("echo hi")).text == "hi\n"
        for found in await pools(rig):
            assert found["metadata"]["ownerReferences"][0]["uid"] == jobs[0]["metadata"]["uid"]


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_a_first_customer_who_is_cancelled_leaves_no_pool_that_nobody_knows(kind: str) -> None:
    async with memory_rig(kind, pool={"by": "task", "replicas": 1}) as rig:
        assert rig.server is not None
        path = "sandboxsets" if kind == "kruise" else "sandboxwarmpools"
        rig.server.faults.append(Fault(method="POST", path=path, status=0, times=1, delay_seconds=0.4, after=True))
        starting = asyncio.create_task(rig.provider.acquire(rig.spec("one")))
        await asyncio.sleep(0.2)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await rig.provider.acquire(rig.spec("two"))
        assert len(await pools(rig)) == 1
        await rig.provider.close()
        assert await all_objects(rig) == []


async def test_a_pool_that_resists_its_removal_keeps_nothing_else_alive() -> None:
    async with memory_rig("kruise", client=CLIENT.model_copy(update={"retry_seconds": 0.2})) as rig:
        assert rig.server is not None
        await rig.provider.acquire(rig.spec("small"))
        await rig.provider.acquire(rig.spec("large", memory_mb=2048))
        rig.server.faults.append(Fault(method="DELETE", path="sandboxsets/agentic-768mb", status=500, times=100))
        await rig.provider.close()
        assert (await rig.admin.list(JOBS)).items == ()
        async with asyncio.timeout(10):
            while await pools(rig):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_pools_of_tasks_share_an_upper_bound_and_go_when_their_task_is_over(kind: str) -> None:
    settings = {"by": "task", "replicas": 2, "maximum": 5, "idle_seconds": 0.4}
    async with memory_rig(kind, pool=settings) as rig:
        taken = [await take(rig, f"s{number}", f"task-{number}:1") for number in range(4)]
        assert sorted(pool["spec"]["replicas"] for pool in await pools(rig)) == [0, 1, 2, 2]
        await asyncio.gather(*(sandbox.release() for sandbox in taken))
        async with asyncio.timeout(10):
            while await all_objects(rig):
                await asyncio.sleep(0.05)
        await take(rig, "again", "task-0:1")
