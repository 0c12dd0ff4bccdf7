"""On a real API server: what only its own controllers, kubelet and admission can show."""

import asyncio
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from faulty_proxy import FaultyProxy
from kube_rig import BASE_IMAGE, CLIENT, KINDS, Rig, Space, Spaces, cluster_rig, kube_settings, make_provider

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, LoadedCredentials
from agentic.cluster.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    Resource,
    name_of,
    uid_of,
)
from agentic.sandbox.base import ImageReference, SandboxProvider
from agentic.sandbox.errors import SandboxExhaustedError, SandboxLostError, SandboxStartError
from agentic.sandbox.kube.probing import try_proxy_port
from agentic.sandbox.kube.provider import KubeProvider
from agentic.sandbox.providers import make_source
from agentic.sandbox.settings import SandboxOwner
from testbed.fake_nodes import NODE_SELECTOR, TOLERATION, fake_node

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[4]
MANY = int(os.environ.get("SANDBOXES", "1000"))
"""Of the test of scale."""

CHILD = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = [{doubles!r}]
from kube_rig import kube_settings, make_provider, CLIENT
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.sandbox.base import ImageReference, SandboxSpec

async def main():
    connect = lambda: KubeClient(LoadedCredentials(Path({account!r})), CLIENT, namespace={namespace!r})
    settings = kube_settings("pod", lease_seconds={lease}, renew_seconds=5, **{changes!r})
    provider = make_provider(settings, connect)
    await provider.acquire(SandboxSpec({run_id!r}, "one", ImageReference("agentic/base:local")))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start_child(space: Space, run_id: str, lease: int, **changes: Any) -> asyncio.subprocess.Process:
    code = CHILD.format(
        doubles=str(ROOT / "tests/doubles"),
        account=str(space.account),
        namespace=space.namespace,
        lease=lease,
        run_id=run_id,
        changes=changes,
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    return child


@pytest.mark.timeout(240)
async def test_what_a_killed_trainer_leaves_is_gone_after_the_lease_without_any_code_of_ours(spaces: Spaces) -> None:
    space = spaces.of("pod")
    async with cluster_rig("pod", space) as rig:
        child = await start_child(space, "killed", lease=60)
        labels = "agentic-rl/run=killed"
        (pod,) = await rig.pods(labels)
        (job,) = (await rig.admin.list(JOBS, labels=labels)).items
        assert pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        await asyncio.sleep(12)
        (renewed,) = (await rig.admin.list(JOBS, labels=labels)).items
        assert renewed["spec"]["activeDeadlineSeconds"] >= 65, "it was renewed while it lived"
        child.send_signal(signal.SIGKILL)
        await child.wait()
        killed = time.monotonic()
        async with asyncio.timeout(150):
            while (await rig.admin.list(JOBS, labels=labels)).items or await rig.pods(labels):
                await asyncio.sleep(1)
        assert 40 < time.monotonic() - killed < 120


@pytest.mark.timeout(150)
async def test_what_a_run_makes_ends_with_the_object_that_owns_it(spaces: Spaces) -> None:
    space = spaces.of("pod")
    async with cluster_rig("pod", space) as rig:
        made = await rig.admin.create(CONFIG_MAPS, CONFIG_MAPS.head("stands-for-a-workflow"))
        owner = SandboxOwner(api_version="v1", kind="ConfigMap", name=name_of(made), uid=uid_of(made))
        owned = rig.another(owner=owner)
        await owned.acquire(rig.spec("one"))
        labels = f"agentic-rl/run={rig.run_id}"
        assert len(await rig.pods(labels)) == 1
        await rig.admin.delete(CONFIG_MAPS, name_of(made))
        try:
            async with asyncio.timeout(100):
                while (await rig.admin.list(JOBS, labels=labels)).items or await rig.pods(labels):
                    await asyncio.sleep(0.5)
        finally:
            await owned.close()


def on_node(name: str) -> dict[str, Any]:
    """Settings for sandboxes that only one fake node takes."""
    tolerations = [TOLERATION]
    return {"node_selector": [f"kubernetes.io/hostname={name}"], "tolerations": tolerations}


@pytest.mark.timeout(150)
async def test_a_sandbox_whose_node_is_lost_is_lost_and_nothing_of_it_is_left(spaces: Spaces) -> None:
    name = f"lost-{uuid.uuid4().hex[:6]}"
    async with cluster_rig("pod", spaces.of("pod"), **on_node(name)) as rig:
        await rig.admin.apply(NODES, fake_node(name, pods=10))
        sandbox = await rig.provider.acquire(rig.spec("one"))
        await rig.admin.delete(NODES, name)
        labels = f"agentic-rl/run={rig.run_id}"
        async with asyncio.timeout(100):
            while await rig.pods(labels):
                await asyncio.sleep(1)
        with pytest.raises(SandboxLostError, match=r"its (pod was deleted|node is gone)"):
            await sandbox.exec("true")
        await sandbox.release()
        await rig.provider.close()
        assert (await rig.admin.list(JOBS, labels=labels)).items == ()


@pytest.mark.timeout(240)
async def test_a_node_that_is_lost_with_the_trainer_leaves_nothing_behind_after_the_lease(spaces: Spaces) -> None:
    space, name = spaces.of("pod"), f"lost-{uuid.uuid4().hex[:6]}"
    async with cluster_rig("pod", space) as rig:
        await rig.admin.apply(NODES, fake_node(name, pods=10))
        child = await start_child(space, name, lease=60, **on_node(name))
        labels = f"agentic-rl/run={name}"
        assert len(await rig.pods(labels)) == 1
        child.send_signal(signal.SIGKILL)
        await rig.admin.delete(NODES, name)
        await child.wait()
        async with asyncio.timeout(180):
            while (await rig.admin.list(JOBS, labels=labels)).items or await rig.pods(labels):
                await asyncio.sleep(1)
            assert (await rig.admin.list(NETWORK_POLICIES, labels=labels)).items == ()


@pytest.mark.parametrize("kind", KINDS)
async def test_two_runs_side_by_side_do_not_touch_each_other(kind: str, spaces: Spaces) -> None:
    async with cluster_rig(kind, spaces.of(kind)) as rig:
        mine = await rig.provider.acquire(rig.spec("one"))
        other = rig.another()
        theirs = await other.acquire(rig.spec("one", run_id="other-run"))
        assert await rig.provider.sweep("other-run") == 0
        await rig.provider.close()
        assert (await theirs.exec("echo alive")).text == "alive\n"
        with pytest.raises(SandboxLostError):
            await mine.exec("true")
        await other.close()
        labels = f"agentic-rl/run in ({rig.run_id},other-run)"
        async with asyncio.timeout(40):
            while await rig.pods(labels):
                await asyncio.sleep(0.5)


async def test_an_image_that_is_nowhere_is_infra_with_the_kubelets_own_words(spaces: Spaces) -> None:
    async with cluster_rig("pod", spaces.of("pod"), unpullable_seconds=2) as rig:
        rig.image = "localhost:1/nowhere/none:1"
        with pytest.raises(
            SandboxStartError, match=r"the node does not reach the registry.*localhost:1/nowhere/none:1"
        ):
            await rig.provider.acquire(rig.spec("one"))


async def test_a_sandbox_that_no_node_has_room_for_is_infra_with_the_schedulers_own_words(spaces: Spaces) -> None:
    async with cluster_rig("pod", spaces.of("pod"), start_timeout_seconds=3, request_cpus=500, cpus=500) as rig:
        with pytest.raises(
            SandboxStartError, match=r"no node has room \(0/\d+ nodes are available: .*Insufficient cpu"
        ):
            await rig.provider.acquire(rig.spec("one"))


async def test_a_sandbox_over_its_memory_is_a_killed_command_or_its_own_doing(spaces: Spaces) -> None:
    async with cluster_rig("pod", spaces.of("pod"), memory_mb=64, request_memory_mb=64) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        hog = ["python3", "-S", "-E", "-c", "bytearray(256 << 20)"]
        try:
            ended = f"exit code {(await sandbox.exec(hog, timeout_seconds=20)).exit_code}"
            assert (await sandbox.exec("echo alive")).text == "alive\n"
        except SandboxExhaustedError as error:
            ended = str(error)
        assert ended == "exit code 137" or "used more memory than its limit" in ended


async def test_nodes_pull_images_ahead_and_one_that_is_nowhere_stops_none(spaces: Spaces) -> None:
    images = ["localhost:1/nowhere/none:1", BASE_IMAGE, f"docker.io/{BASE_IMAGE}"]
    async with cluster_rig("pod", spaces.of("pod"), prefetch={"at_once": 3, "seconds": 60}) as rig:
        await rig.provider.expect(rig.run_id, [ImageReference(image) for image in images])
        prefetch = rig.provider.prefetches[rig.run_id]
        await prefetch.settle()
        (line,) = prefetch.told
        told = f"2 of 3 images are on 1 nodes; not there: {images[0]} (the node does not reach the registry"
        assert line.startswith(told)
        assert (await rig.admin.list(DAEMON_SETS)).items == ()


@pytest.mark.timeout(240)
async def test_what_the_probe_promises_of_pods_is_kept_on_a_real_node(spaces: Spaces) -> None:
    space = spaces.of("pod")
    words = [sys.executable, "-m", "agentic.sandbox.probe", "--provider=pod", "proxy_port=8400", "memory_mb=96"]
    settings = [f"base_image={BASE_IMAGE}", "request_memory_mb=16", f"namespace={space.namespace}"]
    probing = await asyncio.create_subprocess_exec(
        *words,
        *settings,
        cwd=ROOT,
        env=os.environ | {"KUBECONFIG": str(space.account)},
        stdout=asyncio.subprocess.PIPE,
    )
    told = (await probing.communicate())[0].decode()
    assert probing.returncode == 0, told
    rows = {line[8:].partition("  ")[0]: line for line in told.splitlines()}
    proxy = rows.pop("the proxy's port can be reached, and no other of its pod")
    assert proxy.startswith("kept")
    assert proxy.endswith("port 8400 answers, port 8401 does not")
    assert {line[:6].strip() for name, line in rows.items() if name != "processes are bounded"} == {"kept"}, told
    assert rows["processes are bounded"][:6].strip() in ("kept", "open")


@pytest.mark.timeout(240)
async def test_a_sandbox_over_its_disk_is_evicted_and_that_is_its_own_doing(spaces: Spaces) -> None:
    async with cluster_rig("pod", spaces.of("pod"), scratch_mb=16) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        with pytest.raises(SandboxExhaustedError, match="it was evicted"):
            await sandbox.exec("head -c 64M /dev/zero > /tmp/large; sleep 150", timeout_seconds=160)


async def test_a_pod_whose_time_is_over_is_lost_and_says_so(spaces: Spaces) -> None:
    async with cluster_rig("pod", spaces.of("pod")) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        (pod,) = await rig.pods(f"agentic-rl/run={rig.run_id}")
        await rig.admin.patch(PODS, name_of(pod), {"spec": {"activeDeadlineSeconds": 1}})
        with pytest.raises(SandboxLostError, match="its lease has run out"):
            await sandbox.exec("sleep 30")


async def test_a_warm_sandbox_takes_another_image_in_place_on_a_real_node(spaces: Spaces) -> None:
    pool = {"by": "class", "minimum": 1, "spare": 0.0}
    async with cluster_rig("kruise", spaces.of("kruise"), pool=pool) as rig:
        first = await rig.provider.acquire(rig.spec("one"))
        async with asyncio.timeout(40):
            while len(await rig.pods(f"agentic-rl/run={rig.run_id}")) < 2:
                await asyncio.sleep(0.5)
        rig.image = "docker.io/agentic/base:local"
        sandbox = await rig.provider.acquire(rig.spec("two"))
        assert (await sandbox.exec("echo hi")).text == "hi\n"
        assert (await first.exec("echo hi")).text == "hi\n"


async def test_a_proxy_whose_port_no_policy_opens_is_found_by_the_probe(spaces: Spaces) -> None:
    async with cluster_rig("pod", spaces.of("pod")) as rig:
        sandbox = await rig.provider.acquire(rig.spec("one"))
        asked = rig.settings.model_copy(update={"proxy_port": 8400})
        api = rig.connect()
        is_kept, detail = await try_proxy_port(api, asked, 8400, sandbox, patience_seconds=8)
        await api.close()
        assert is_kept is False
        assert detail.startswith("port 8400 of a pod with the proxy's labels does not answer")
        left = await rig.pods(f"agentic-rl/run={rig.run_id},agentic-rl/role=trainer")
        assert all(pod["metadata"].get("deletionTimestamp") for pod in left)


async def make_fake_nodes(rig: Rig, count: int) -> None:
    for number in range(count):
        await rig.admin.apply(NODES, fake_node(f"fake-{number}", pods=1000))


FAKE = {
    "node_selector": [f"{key}={value}" for key, value in NODE_SELECTOR.items()],
    "tolerations": [TOLERATION],
    "starts_per_node": 64,
}


@pytest.mark.scale
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_thousand_sandboxes_come_and_go_while_the_api_server_fails(kind: str, spaces: Spaces) -> None:
    space = spaces.of(kind)
    pool = {} if kind == "pod" else {"pool": {"by": "task", "replicas": 8}}
    async with cluster_rig(
        kind, space, kubelet=False, start_timeout_seconds=120, start_concurrency=64, **FAKE, **pool
    ) as rig:
        await make_fake_nodes(rig, 4)
        access = await LoadedCredentials(space.account).access()
        async with FaultyProxy(access, error_rate=0.05, watch_expiry_rate=0.002) as proxy:
            provider = provider_behind(proxy, space, rig)
            began = time.monotonic()
            outcomes = await churn(rig, provider, MANY, at_once=64)
            seconds = time.monotonic() - began
            assert sum(proxy.injected.values()) > MANY / 20
            await provider.close()
        lost = [str(one) for one in outcomes if one is not None]
        sys.stderr.write(
            f"\n{kind}: {MANY} sandboxes in {seconds:.0f} s, {len(lost)} infra, injected {dict(proxy.injected)}\n"
        )
        assert len(lost) <= MANY * 0.01, lost[:3]
        await until_nothing_is_left(kind, rig)


MADE_BY_CONTROLLERS = Resource("agents.x-k8s.io", "v1beta1", "sandboxes", "Sandbox")


async def until_nothing_is_left(kind: str, rig: Rig) -> None:
    """Of any kind that the provider or its controller makes, in the whole namespace, whatever its labels."""
    kinds = (*make_source(kube_settings(kind), rig.admin).kinds, *(PODS, JOBS, NETWORK_POLICIES, DAEMON_SETS))
    kinds += (MADE_BY_CONTROLLERS,) if kind == "agent-sandbox" else ()
    until = time.monotonic() + 120
    while found := [f"{one.kind} {name_of(body)}" for one in kinds for body in (await rig.admin.list(one)).items]:
        assert time.monotonic() < until, f"{len(found)} objects are left, such as {found[:5]}"
        await asyncio.sleep(1)


def provider_behind(proxy: FaultyProxy, space: Space, rig: Rig) -> KubeProvider:
    token = LoadedCredentials(space.account)

    class Behind:
        async def access(self, *, is_refused: bool = False) -> Access:
            known = await token.access(is_refused=is_refused)
            return Access(proxy.address, known.authorization, namespace=space.namespace)

    return make_provider(rig.settings, lambda: KubeClient(Behind(), CLIENT, namespace=space.namespace))


async def churn(rig: Rig, provider: SandboxProvider, count: int, at_once: int) -> list[Exception | None]:
    """Take and give back, so many at once, in random order of ends."""
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> Exception | None:
        async with gate:
            try:
                sandbox = await provider.acquire(rig.spec(f"s{number}"))
            except SandboxStartError as error:
                return error
            await asyncio.sleep(number % 7 / 10)
            await sandbox.release()
        return None

    return await asyncio.gather(*(one(number) for number in range(count)))
