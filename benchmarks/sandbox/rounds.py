"""What is measured: acquire, commands at several concurrencies, transfers, and a thousand sandboxes held at once."""

import asyncio
import gc
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.sandbox.base import Sandbox, SandboxProvider
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import PodSandbox
from benchmarks.sandbox.measuring import Tally, Times, cost, memory_mib
from benchmarks.sandbox.warm import measure_warm
from benchmarks.sandbox.ways import Ack, Kubectl, Kubelet, Mover, OfficialClient, Ours, Way, check, spec_of
from testbed.access import ClusterAccess
from testbed.fake_nodes import NODE_SELECTOR, TOLERATION, fake_node

IMAGE = "agentic/base:local"
PASSES = 3
"""Of each way at each concurrency."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of it."""

    sandboxes: int
    """Real pods. More than 30 commands at once in one pod wait for containerd 1.6, a second each."""
    concurrencies: Sequence[int]
    commands: int
    """At the lowest concurrency; at a higher one at least as many as run at once."""
    megabytes: int
    claims: int
    """Of warm sandboxes."""
    held: int
    """Sandboxes on fake nodes, for the client's own cost."""


def settings_for(namespace: str, **more: Any) -> PodSandbox:
    return PodSandbox(
        namespace=namespace, base_image=IMAGE, request_cpus=0.001, request_memory_mb=8, scratch_mb=512, **more
    )


def open_provider(settings: PodSandbox, folder: Path) -> SandboxProvider:
    return make_provider(settings, open_store(folder, settings))


async def measure(plan: Plan, cluster: ClusterAccess, namespace: str) -> dict[str, Any]:
    """All of it, one part after the other; each part leaves nothing for the next."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {"client_of_many": await measure_many(plan, cluster, namespace, Path(folder))}
        found["acquire_warm"] = await measure_warm(cluster, namespace, IMAGE, plan.claims)
        provider = open_provider(settings_for(namespace), Path(folder))
        acks = (Ack(namespace, IMAGE), Ack(namespace, IMAGE, is_isolated=False))
        try:
            sandboxes, ours = await acquire_all(provider, plan.sandboxes)
            async with acks[0], acks[1]:
                started = [await start_all(ack, plan.sandboxes) for ack in acks]
                found["acquire_cold"] = {"ours": ours, acks[0].name: started[0]}
                pods = [sandbox.name for sandbox in sandboxes]  # type: ignore[attr-defined]
                found["exec"] = await measure_exec(plan, cluster, namespace, pods, (Ours(sandboxes), *acks))
                movers = (Ours(sandboxes), Kubectl(namespace, pods), acks[0])
                found["transfer"] = await measure_transfers(movers, plan.megabytes, Path(folder))
        finally:
            await provider.close()
    return found


async def acquire_all(provider: SandboxProvider, count: int) -> tuple[list[Sandbox], dict[str, Any]]:
    """One by one, so that a start is timed and not the queue before it."""
    times, sandboxes = Times(), []
    for number in range(count):
        sandboxes.append(await times.take(provider.acquire(spec_of(f"pod-{number}", IMAGE))))
    return sandboxes, times.summary()


async def start_all(ack: Ack, count: int) -> dict[str, Any]:
    times = Times()
    for number in range(count):
        await times.take(ack.start(number, ack.name.replace(", ", "-").replace(" ", "-").lower()))
    return times.summary()


async def measure_exec(
    plan: Plan, cluster: ClusterAccess, namespace: str, pods: list[str], others: Sequence[Way]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for concurrency in plan.concurrencies:
        official = OfficialClient(namespace, pods, concurrency)
        async with Kubelet(cluster.layout, namespace, pods) as kubelet, official:
            ways: tuple[Way, ...] = (kubelet, *others, official)
            tallies = [Tally(concurrency) for _ in ways]
            for _ in range(PASSES):
                for way, tally in zip(ways, tallies, strict=True):
                    await run_pass(way, tally, plan)
        rows += [{"way": way.name, **tally.row()} for way, tally in zip(ways, tallies, strict=True)]
    return rows


async def run_pass(way: Way, tally: Tally, plan: Plan) -> None:
    await tally.run(lambda number: way.run(number % plan.sandboxes), max(plan.commands // PASSES, tally.concurrency))


async def measure_transfers(movers: Sequence[Mover], megabytes: int, folder: Path) -> list[dict[str, Any]]:
    """A file of random bytes there and back; what came back is compared, and a difference is a result too."""
    source, back = folder / "source.bin", folder / "back.bin"
    source.write_bytes(os.urandom(megabytes << 20))
    wanted = hashlib.sha256(source.read_bytes()).hexdigest()
    rows: list[dict[str, Any]] = []
    for mover in movers:
        back.unlink(missing_ok=True)
        up: dict[str, Any] = {}
        down: dict[str, Any] = {}
        async with cost(up, 1):
            await mover.upload(source, "/tmp/benchmark.bin")
        async with cost(down, 1):
            await mover.download("/tmp/benchmark.bin", back)
        rows.append(
            {
                "way": mover.name,
                "megabytes": megabytes,
                "upload_mb_per_second": round(megabytes / up["seconds"], 1),
                "download_mb_per_second": round(megabytes / down["seconds"], 1),
                "is_exact": hashlib.sha256(back.read_bytes()).hexdigest() == wanted,
            }
        )
    return rows


async def measure_many(plan: Plan, cluster: ClusterAccess, namespace: str, folder: Path) -> dict[str, Any]:
    """Acquire and hold sandboxes that kwok plays: what they cost the client and the API server, not the node."""
    per_node = 500
    nodes = [fake_node(f"{namespace}-{number}", pods=per_node) for number in range(plan.held // per_node + 1)]
    cluster.apply(*nodes)
    settings = settings_for(namespace, node_selector=NODE_SELECTOR, tolerations=(TOLERATION,), start_concurrency=256)
    provider = open_provider(settings.model_copy(update={"starts_per_node": 128}), folder)
    found: dict[str, Any] = {"sandboxes": plan.held}
    try:
        await (await provider.acquire(spec_of("first", IMAGE))).release()
        gc.collect()
        before = memory_mib()
        times = Times()
        async with cost(found, plan.held):
            held = await asyncio.gather(
                *(times.take(provider.acquire(spec_of(f"held-{number}", IMAGE))) for number in range(plan.held))
            )
        gc.collect()
        found["client_memory_mib"] = round(memory_mib() - before, 1)
        check("ours", "how many are held", plan.held, len({sandbox.spec.sandbox_id for sandbox in held}))
        released: dict[str, Any] = {}
        async with cost(released, plan.held):
            await asyncio.gather(*(sandbox.release() for sandbox in held))
        found["release"] = released
    finally:
        await provider.close()
        cluster.kubectl("delete", "node", *(node["metadata"]["name"] for node in nodes), "--wait=false")
    return found | {"acquire": times.summary()}
