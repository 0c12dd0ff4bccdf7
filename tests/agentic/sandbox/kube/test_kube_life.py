"""Sandboxes come and go: leases are renewed, nothing is left behind, and nobody touches what is another's."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kube_api import Fault
from kube_rig import CLIENT, KINDS, Rig, memory_rig

from agentic.cluster.resources import JOBS, NETWORK_POLICIES, PODS, JsonObject, Resource, name_of, uid_of
from agentic.sandbox.base import Sandbox, SandboxSpec
from agentic.sandbox.errors import SandboxLostError, SandboxSetupError, SandboxStartError
from agentic.sandbox.kube.leases import parse_time
from agentic.sandbox.kube.manifests import HEARTBEAT, HOLDER
from agentic.sandbox.kube.owner import describe_holder, is_lease_dead

ROOT = Path(__file__).parents[4]


async def objects(rig: Rig) -> list[str]:
    """Everything of ours that the API server holds."""
    assert rig.server is not None
    return sorted(f"{kind}/{name}" for kind, _, name in rig.server.store.objects)


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_a_provider_leaves_nothing_at_all(kind: str) -> None:
    async with memory_rig(kind) as rig:
        await asyncio.gather(*(rig.provider.acquire(rig.spec(f"s{number}")) for number in range(5)))
        assert len(await rig.pods()) >= 5
        await rig.provider.close()
        async with asyncio.timeout(10):
            while await objects(rig):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_released_sandboxs_objects_are_gone_and_others_stay(kind: str) -> None:
    no_pool = {} if kind == "pod" else {"pool": {"by": "task", "replicas": 0}}
    async with memory_rig(kind, **no_pool) as rig:
        first, second = [await rig.provider.acquire(rig.spec(name)) for name in ("one", "two")]
        await first.release()
        async with asyncio.timeout(10):
            while len(await rig.pods()) != 1:
                await asyncio.sleep(0.05)
        assert (await second.exec("echo here")).text == "here\n"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_that_is_cancelled_leaves_nothing(kind: str) -> None:
    no_pool = {} if kind == "pod" else {"pool": {"by": "task", "replicas": 0}}
    async with memory_rig(kind, **no_pool) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        for pause in (0.0, 0.02, 0.1, 0.4):
            starting = asyncio.create_task(rig.provider.acquire(rig.spec(f"s{pause}")))
            await asyncio.sleep(pause)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        async with asyncio.timeout(10):
            while await rig.pods():
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_dead_owners_sandboxes_are_swept_and_a_living_ones_are_not(kind: str) -> None:
    async with memory_rig(kind) as rig:
        living = await rig.provider.acquire(rig.spec("living"))
        dead = rig.another()
        await dead.acquire(rig.spec("dead"))
        elsewhere = rig.another()
        other = await elsewhere.acquire(rig.spec("other", run_id="another-run"))
        await play_death(rig, "dead")
        assert await rig.provider.sweep(rig.run_id) == 1
        assert await rig.provider.sweep(rig.run_id) == 0
        assert (await living.exec("echo a")).text == (await other.exec("echo a")).text == "a\n"
        await elsewhere.close()
        await dead.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_after_the_end_of_a_run_the_sandboxes_of_an_owner_killed_a_moment_ago_are_swept_at_once(
    kind: str,
) -> None:
    async with memory_rig(kind) as rig:
        await rig.provider.acquire(rig.spec("one"))
        (job,) = (await rig.admin.list(JOBS)).items
        elsewhere = {HOLDER: "elsewhere boot pid:[1] 1:1", HEARTBEAT: str(time.time() - 5)}
        await rig.admin.patch(JOBS, name_of(job), {"metadata": {"annotations": elsewhere}})
        exit_handler = rig.another()
        assert await exit_handler.sweep(rig.run_id) == 0
        assert await exit_handler.sweep("another-run", is_over=True) == 0
        assert await exit_handler.sweep(rig.run_id, is_over=True) == 1
        assert (await rig.admin.list(JOBS)).items == ()
        await exit_handler.close()


async def play_death(rig: Rig, sandbox_id: str) -> None:
    """Make the owner of a sandbox look like one on another machine that has stopped renewing."""
    for job in (await rig.admin.list(JOBS)).items:
        owned = await rig.pods(f"agentic-rl/owner={name_of(job)}")
        claims = [
            pod for pod in owned if sandbox_id in pod["metadata"]["labels"].get("agentic-rl/sandbox", name_of(pod))
        ]
        if claims:
            stale = {HOLDER: "elsewhere boot pid:[1] 1:1", HEARTBEAT: str(time.time() - 3600)}
            await rig.admin.patch(JOBS, name_of(job), {"metadata": {"annotations": stale}})


def test_an_owner_on_this_machine_is_dead_when_its_process_is_gone() -> None:
    holder = describe_holder()
    lease = {"metadata": {"annotations": {HOLDER: holder, HEARTBEAT: "0"}}}
    assert not is_lease_dead(lease, 60, time.time()), "it lives, however long it did not renew"
    place, _, _ = holder.rpartition(" ")
    gone = {"metadata": {"annotations": {HOLDER: f"{place} 4194304:1", HEARTBEAT: str(time.time())}}}
    assert is_lease_dead(gone, 60, time.time())
    assert is_lease_dead({"metadata": {}}, 60, time.time())


async def test_an_owners_lease_is_pushed_on_while_it_lives() -> None:
    async with memory_rig("pod", renew_seconds=0.1) as rig:
        await rig.provider.acquire(rig.spec("one"))
        (job,) = (await rig.admin.list(JOBS)).items
        first = float(job["metadata"]["annotations"][HEARTBEAT])
        assert job["spec"]["activeDeadlineSeconds"] == rig.settings.lease_seconds
        assert (job["spec"]["parallelism"], job["spec"]["ttlSecondsAfterFinished"]) == (0, 0)
        await asyncio.sleep(1.5)
        job = await rig.admin.get(JOBS, name_of(job))
        assert float(job["metadata"]["annotations"][HEARTBEAT]) > first
        assert job["spec"]["activeDeadlineSeconds"] > rig.settings.lease_seconds


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_a_claims_own_lease_is_renewed_when_half_of_it_is_gone(kind: str) -> None:
    group = {"kruise": "agents.kruise.io", "agent-sandbox": "extensions.agents.x-k8s.io"}[kind]
    kinds = {
        "kruise": Resource(group, "v1alpha1", "sandboxes", "Sandbox"),
        "agent-sandbox": Resource(group, "v1beta1", "sandboxclaims", "SandboxClaim"),
    }
    async with memory_rig(kind, lease_seconds=60, renew_seconds=10, pool={"by": "task", "replicas": 0}) as rig:
        await rig.provider.acquire(rig.spec("one"))

        async def ends() -> float:
            (body,) = (await rig.admin.list(kinds[kind])).items
            found = parse_time({**body["spec"], **body["spec"].get("lifecycle", {})}["shutdownTime"])
            assert found is not None
            return found

        first = await ends()
        assert 58 < first - time.time() <= 61
        await rig.provider.renew_due()
        assert await ends() == first
        for used in rig.provider._in_use.values():
            used.taken = type(used.taken)(used.taken.pod, type(used.taken.lease)(60, time.time() + 20))
        await asyncio.sleep(1.1)
        await rig.provider.renew_due()
        assert await ends() > first


@pytest.mark.parametrize("kind", ["kruise", "agent-sandbox"])
async def test_a_claim_that_nobody_renews_ends_with_its_sandbox(kind: str) -> None:
    async with memory_rig(kind, lease_seconds=60, renew_seconds=10, pool={"by": "task", "replicas": 0}) as rig:
        rig.provider.settings = rig.settings
        sandbox = await rig.provider.acquire(rig.spec("one"))
        await let_time_pass(rig, kind)
        async with asyncio.timeout(10):
            while await rig.pods():
                await asyncio.sleep(0.05)
        with pytest.raises(SandboxLostError):
            await sandbox.exec("true")


async def let_time_pass(rig: Rig, kind: str) -> None:
    """Bring the end of every claim's time to now."""
    assert rig.controller is not None
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if kind == "kruise":
        resource, patch = rig.controller.sandboxes, {"spec": {"shutdownTime": now}}
    else:
        resource, patch = rig.controller.claims, {"spec": {"lifecycle": {"shutdownTime": now}}}
    for body in (await rig.admin.list(resource)).items:
        await rig.admin.patch(resource, name_of(body), patch)


async def test_a_lease_that_vanished_is_made_anew_for_the_sandboxes_to_come() -> None:
    async with memory_rig("pod", renew_seconds=0.1) as rig:
        first = await rig.provider.acquire(rig.spec("one"))
        (job,) = (await rig.admin.list(JOBS)).items
        await rig.admin.delete(JOBS, name_of(job))

        async def use_until_lost() -> None:
            async with asyncio.timeout(10):  # the collector comes a moment later
                while True:
                    await first.exec("true")

        with pytest.raises(SandboxLostError, match="its pod was deleted"):
            await use_until_lost()
        async with asyncio.timeout(10):
            while not (await rig.admin.list(NETWORK_POLICIES)).items:
                await asyncio.sleep(0.05)
        second = await rig.provider.acquire(rig.spec("two"))
        assert (await second.exec("echo on")).text == "on\n"


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10):
        while not await holds():
            await asyncio.sleep(0.02)


async def taken(rig: Rig) -> list[JsonObject]:
    """Pods or claims that stand for a sandbox each, and are not on their way out."""
    assert rig.provider._source is not None
    found = (await rig.admin.list(rig.provider._source.kinds[0])).items
    return [one for one in found if not one["metadata"].get("deletionTimestamp")]


async def lease_and_policies(rig: Rig) -> tuple[JsonObject, list[str]]:
    """The only lease, and the leases that network policies belong to."""
    (job,) = (await rig.admin.list(JOBS)).items
    policies = (await rig.admin.list(NETWORK_POLICIES)).items
    return job, [owner["uid"] for policy in policies for owner in policy["metadata"]["ownerReferences"]]


async def lose_lease(rig: Rig, *faults: Fault) -> None:
    """Of a provider that holds one sandbox; from then on these faults wait for it."""
    assert rig.server is not None
    await rig.provider.acquire(rig.spec("one"))
    (job,) = (await rig.admin.list(JOBS)).items
    rig.server.faults += faults
    await rig.admin.delete(JOBS, name_of(job))


async def test_a_lease_made_anew_gets_its_network_policy_although_that_was_refused_at_first() -> None:
    async with memory_rig("pod", renew_seconds=0.2) as rig:
        refusal = Fault("PATCH", "networkpolicies", status=403, times=2)
        await lose_lease(rig, refusal)

        async def is_closed_in() -> bool:
            if refusal.times or not (await rig.admin.list(JOBS)).items:
                return False
            lease, closed_in = await lease_and_policies(rig)
            return uid_of(lease) in closed_in

        await until(is_closed_in)


async def test_no_sandbox_is_made_while_its_lease_has_no_network_policy() -> None:
    async with memory_rig("pod", renew_seconds=0.2) as rig:
        refusal = Fault("PATCH", "networkpolicies", status=403, times=1000)
        await lose_lease(rig, refusal)

        async def was_refused() -> bool:
            return refusal.seen > 0

        await until(was_refused)
        with pytest.raises(SandboxStartError, match=r"has no network policy to start under: .*networkpolicies"):
            await rig.provider.acquire(rig.spec("two"))


async def test_a_lease_that_was_made_without_our_learning_of_it_is_taken_over_whole() -> None:
    hasty = CLIENT.model_copy(update={"retry_seconds": 0.2})
    async with memory_rig("pod", client=hasty, renew_seconds=0.2, lease_seconds=3600) as rig:
        assert rig.server is not None
        await rig.provider.acquire(rig.spec("one"))
        (owner,) = rig.provider._owners.values()
        owner._made_at -= 70_000  # of a process that has run for most of a day
        (job,) = (await rig.admin.list(JOBS)).items
        rig.server.faults.append(Fault("POST", "/jobs", status=503, times=1000, after=True))
        rig.server.faults.append(Fault("GET", "/jobs/", status=503, times=1000))
        await rig.admin.delete(JOBS, name_of(job))

        async def is_whole() -> bool:
            if not (await rig.admin.list(JOBS)).items:
                return False
            lease, closed_in = await lease_and_policies(rig)
            return uid_of(lease) in closed_in and lease["spec"]["activeDeadlineSeconds"] < 3700

        await until(is_whole)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_given_back_during_an_outage_is_given_back_after_it(kind: str) -> None:
    hasty = CLIENT.model_copy(update={"retry_seconds": 0.2})
    async with memory_rig(kind, client=hasty, renew_seconds=0.2) as rig:
        assert rig.server is not None
        sandbox = await rig.provider.acquire(rig.spec("one"))
        rig.server.faults.append(Fault("DELETE", ".*", status=503, times=1000))
        await sandbox.release()
        assert await taken(rig)
        rig.server.faults.clear()

        async def is_given_back() -> bool:
            return not await taken(rig)

        await until(is_given_back)


async def test_a_sandbox_that_is_owed_is_given_back_before_its_name_is_used_again() -> None:
    hasty = CLIENT.model_copy(update={"retry_seconds": 0.2})
    async with memory_rig("pod", client=hasty) as rig:
        assert rig.server is not None
        first = await rig.provider.acquire(rig.spec("one"))
        await first.exec("echo old > /tmp/word")
        rig.server.faults.append(Fault("DELETE", ".*", status=503, times=1000))
        await first.release()
        with pytest.raises(SandboxStartError, match="injected"):
            await rig.provider.acquire(rig.spec("one"))
        rig.server.faults.clear()
        again = await rig.provider.acquire(rig.spec("one"))
        assert (await again.exec("cat /tmp/word")).exit_code == 1


@pytest.mark.parametrize(
    ("kind", "path"), [("pod", "/pods"), ("kruise", "/sandboxclaims"), ("agent-sandbox", "/sandboxclaims")]
)
async def test_what_was_made_although_every_answer_was_lost_is_removed(kind: str, path: str) -> None:
    hasty = CLIENT.model_copy(update={"retry_seconds": 0.2})
    async with memory_rig(kind, client=hasty, renew_seconds=0.2) as rig:
        assert rig.server is not None
        await rig.provider.acquire(rig.spec("ready"))
        creating = Fault("POST", f"{path}[?]", status=503, times=1000, after=True)
        looking = Fault("GET", f"{path}/lost", status=503, times=1000)
        rig.server.faults += [creating, looking]
        with pytest.raises(SandboxStartError, match="injected"):
            await rig.provider.acquire(rig.spec("lost"))
        assert creating.seen
        assert [name_of(one).partition("-")[0] for one in await taken(rig)] == ["ready"]


async def test_a_sandbox_that_is_ready_in_the_moment_in_which_its_acquire_is_cancelled_is_given_back() -> None:
    async with memory_rig("pod") as rig:
        inner = rig.provider._acquire

        async def ready_and_cancelled(spec: SandboxSpec) -> Sandbox:
            sandbox = await inner(spec)
            asyncio.get_running_loop().call_soon(outer.cancel)
            return sandbox

        rig.provider._acquire = ready_and_cancelled  # type: ignore[method-assign]
        outer = asyncio.create_task(rig.provider.acquire(rig.spec("one")))
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert not rig.provider._in_use
        assert not await taken(rig)


CHILD = """
import asyncio, faulthandler, signal, sys
faulthandler.dump_traceback_later(40, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run in the background, where it is ignored
sys.path[:0] = [{doubles!r}]
from kube_rig import kube_settings, make_provider, CLIENT
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.sandbox.base import ImageReference, SandboxSpec

async def main():
    connect = lambda: KubeClient(FixedCredentials(Access({address!r})), CLIENT)
    provider = make_provider(kube_settings("pod"), connect)
    try:
        await provider.acquire(SandboxSpec("killed", "one", ImageReference("agentic/base:local")))
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        await provider.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_a_process_that_is_ended_leaves_nothing_or_what_a_sweep_removes_at_once(how: signal.Signals) -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        code = CHILD.format(doubles=str(ROOT / "tests/doubles"), address=rig.server.address)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
        assert await rig.provider.sweep("killed") == 0
        child.send_signal(how)
        _, errors = await child.communicate()
        assert b"Timeout (" not in errors, errors.decode()
        if how is signal.SIGKILL:
            (pod,) = await rig.pods()
            (job,) = (await rig.admin.list(JOBS)).items
            assert pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
            assert pod["spec"]["activeDeadlineSeconds"] == rig.settings.lease_seconds
            assert await rig.provider.sweep("killed") == 1
        assert await rig.pods() == ()
        assert (await rig.admin.list(JOBS)).items == ()


async def test_what_a_run_makes_can_end_with_its_workflow() -> None:
    owner = {"api_version": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "u-1"}
    async with memory_rig("pod", owner=owner) as rig:
        await rig.provider.acquire(rig.spec("one"))
        (job,) = (await rig.admin.list(JOBS)).items
        (reference,) = job["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["name"], reference["uid"]) == ("Workflow", "w", "u-1")


FORBIDDEN = 'networkpolicies is forbidden: User "u" cannot patch resource "networkpolicies" in API group'


async def test_an_owner_that_was_half_made_is_undone_at_once() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(method="PATCH", path="networkpolicies", status=403, times=3, message=FORBIDDEN))
        for number in range(3):
            with pytest.raises(SandboxSetupError):
                await rig.provider.acquire(rig.spec(f"s{number}"))
            assert await objects(rig) == []


@pytest.mark.parametrize("path", ["/jobs", "networkpolicies", "/pods"])
@pytest.mark.parametrize("after", [False, True])
async def test_an_owner_whose_making_is_cancelled_is_undone(path: str, after: bool) -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(path=path, status=0, delay_seconds=0.4, times=1, after=after))
        starting = asyncio.create_task(rig.provider.acquire(rig.spec("one")))
        await asyncio.sleep(0.2)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with asyncio.timeout(10):
            while await objects(rig):
                await asyncio.sleep(0.05)


async def test_a_cluster_whose_pods_cannot_be_listed_is_infra_in_time_and_blocks_nobody() -> None:
    async with memory_rig("pod", start_timeout_seconds=1.0) as rig:
        assert rig.server is not None
        rig.server.faults.append(Fault(method="GET", path=r"/pods\?", status=503, times=10_000))
        starting = asyncio.create_task(rig.provider.acquire(rig.spec("one")))
        await asyncio.sleep(0.3)
        rig.server.faults[0].path = r"/pods\?.*owner"
        assert await asyncio.wait_for(rig.provider.sweep("another-run"), 0.6) == 0
        with pytest.raises(SandboxStartError, match="cannot be watched"):
            await starting


async def test_closing_ends_starts_under_way() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        starting = asyncio.create_task(rig.provider.acquire(rig.spec("one")))
        async with asyncio.timeout(10):
            while not await rig.pods():
                await asyncio.sleep(0.02)
        await rig.provider.close()
        with pytest.raises(SandboxStartError, match="its provider is closed"):
            await asyncio.wait_for(starting, 5)
        assert await objects(rig) == []


async def test_the_network_stays_closed_until_the_pods_are_gone() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        await rig.provider.acquire(rig.spec("one"))
        (pod,) = await rig.pods()
        finalizers = {"metadata": {"finalizers": ["test/slow"]}}
        await rig.admin.patch(PODS, name_of(pod), finalizers)
        closing = asyncio.create_task(rig.provider.close())
        await asyncio.sleep(0.5)
        assert (await rig.pods())[0]["metadata"]["deletionTimestamp"]
        assert (await rig.admin.list(NETWORK_POLICIES)).items
        await rig.admin.patch(PODS, name_of(pod), {"metadata": {"finalizers": None}})
        await asyncio.wait_for(closing, 10)
        assert await objects(rig) == []


async def test_the_lease_ends_even_when_the_policy_resists() -> None:
    async with memory_rig("pod") as rig:
        assert rig.server is not None
        await rig.provider.acquire(rig.spec("one"))
        said = FORBIDDEN.replace("patch", "delete")
        rig.server.faults.append(Fault(method="DELETE", path="networkpolicies", status=403, times=9, message=said))
        await rig.provider.close()
        assert (await rig.admin.list(JOBS)).items == ()


@pytest.mark.parametrize("lag", [-4000.0, 4000.0])
async def test_a_clock_that_is_wrong_takes_nobody_for_dead(lag: float) -> None:
    async with memory_rig("pod", renew_seconds=0.1) as rig:
        assert rig.server is not None

        rig.server.store.clock_lag_seconds = lag
        await rig.provider.acquire(rig.spec("one"))
        await asyncio.sleep(0.5)
        (job,) = (await rig.admin.list(JOBS)).items
        place = {HOLDER: "elsewhere boot pid:[1] 1:1"}
        await rig.admin.patch(JOBS, name_of(job), {"metadata": {"annotations": place}})
        assert abs(float(job["metadata"]["annotations"][HEARTBEAT]) - time.time() - lag) < 60
        assert rig.settings.lease_seconds <= job["spec"]["activeDeadlineSeconds"] < rig.settings.lease_seconds + 60
        another = rig.another(renew_seconds=60.0)
        assert await another.sweep(rig.run_id) == 0
        await another.close()
