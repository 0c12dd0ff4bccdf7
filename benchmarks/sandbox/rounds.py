"""What is measured in pods: cold starts, commands at several concurrencies, transfers, a thousand sandboxes held."""

import asyncio
import contextlib
import filecmp
import gc
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.sandbox.base import Sandbox, SandboxProvider
from agentic.sandbox.kube.manifests import PROGRAM
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import PodSandbox
from benchmarks.sandbox.measuring import Tally, Times, cost, memory_mib
from benchmarks.sandbox.ways import Ack, Kubectl, Kubelet, Mover, OfficialClient, Ours, Way, check, spec_of
from testbed.access import ClusterAccess
from testbed.component import Machine
from testbed.fake_nodes import NODE_SELECTOR, TOLERATION, fake_node
from testbed.images import Entry, ImageConfig, write_image
from testbed.tools import Toolbox

IMAGE = "agentic/base:local"
EXEC_SERVER_IMAGE = "localhost/agentic/exec-server:benchmark"
ROOT = Path(__file__).parents[2]
SETTLE_SECONDS = 3.0
"""Between two ways: the node still tidies up after the one's commands, at the expense of the other's."""
ACK_MEGABYTES = 16
"""Its download takes half a second of CPU for each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of it."""

    sandboxes: int
    """Real pods. More than 30 commands at once in one pod wait for containerd 1.6, a second each."""
    commands: dict[int, tuple[int, int]]
    """How many run at once → passes over all ways, and commands of each way in a pass."""
    megabytes: int
    transfers: int
    """Passes over all ways."""
    claims: int
    """Of warm sandboxes."""
    held: int
    """Sandboxes on fake nodes, for the client's own cost."""


FULL = Plan(40, {1: (5, 30), 100: (5, 200), 1000: (3, 1000)}, megabytes=400, transfers=2, claims=20, held=1000)
QUICK = Plan(3, {1: (2, 5), 16: (1, 32)}, megabytes=16, transfers=1, claims=3, held=50)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a part gets."""

    plan: Plan
    cluster: ClusterAccess
    namespace: str
    folder: Path
    say: Callable[[str], None]

    def exec_server(self) -> Path | None:
        """The program, built if need be; None without Go."""
        done = subprocess.run(["make", "--silent", "exec-server"], cwd=ROOT, check=False)
        return ROOT / "build/exec-server" if done.returncode == 0 else None

    def exec_server_image(self) -> str | None:
        """Imported into the node: what `images/exec-server/Dockerfile` makes."""
        program = self.exec_server()
        if program is None:
            return None
        entries = [Entry(str(Path(PROGRAM).parent.relative_to("/"))), Entry(PROGRAM.lstrip("/"), source=program)]
        archive = self.folder / "exec-server.tar"
        write_image(archive, EXEC_SERVER_IMAGE, entries, ImageConfig(entrypoint=[PROGRAM]))
        Machine(self.cluster.layout, Toolbox(self.cluster.layout)).containerd("images", "import", str(archive))
        return EXEC_SERVER_IMAGE

    def provider(self, **more: Any) -> SandboxProvider:
        fields: dict[str, Any] = {"request_cpus": 0.001, "request_memory_mb": 8, "scratch_mb": 1024}
        settings = PodSandbox(namespace=self.namespace, base_image=IMAGE, **fields, **more)
        return make_provider(settings, open_store(self.folder, settings))

    @contextlib.asynccontextmanager
    async def ours(self, count: int) -> AsyncIterator[list[tuple[Ours, dict[str, Any]]]]:
        """By WebSocket, and by exec servers where those can be built, each with the times of its starts."""
        image = self.exec_server_image()
        async with contextlib.AsyncExitStack() as providers:
            found = []
            for name, more in (("ours", {}), ("ours, exec server", {"exec_server_image": image})):
                if name != "ours" and image is None:
                    continue
                provider = self.provider(**more)
                providers.push_async_callback(provider.close)
                sandboxes, times = await acquire_all(provider, name, count)
                found.append((Ours(sandboxes, name), times))
                self.say(f"  {count} sandboxes of {name}")
            yield found


async def acquire_all(provider: SandboxProvider, name: str, count: int) -> tuple[list[Sandbox], dict[str, Any]]:
    """One by one, so that a start is timed and not the queue before it."""
    times, sandboxes = Times(), []
    prefix = name.replace(", ", "-").replace(" ", "-")
    for number in range(count):
        sandboxes.append(await times.take(provider.acquire(spec_of(f"{prefix}-{number}", IMAGE))))
    return sandboxes, times.summary()


async def start_all(ack: Ack, count: int) -> dict[str, Any]:
    times = Times()
    for number in range(count):
        await times.take(ack.start(number, ack.name.replace(", ", "-").replace(" ", "-").lower()))
    return times.summary()


async def measure_exec(bench: Bench) -> dict[str, Any]:
    """Cold starts, and commands in what was started."""
    count = bench.plan.sandboxes
    acks = (Ack(bench.namespace, IMAGE), Ack(bench.namespace, IMAGE, is_isolated=False))
    async with bench.ours(count) as ours, acks[0], acks[1]:
        cold = {way.name: times for way, times in ours}
        for ack in acks:
            cold[ack.name] = await start_all(ack, count)
            bench.say(f"  {count} sandboxes of {ack.name}")
        rows: list[dict[str, Any]] = []
        for concurrency, (passes, commands) in bench.plan.commands.items():
            official = OfficialClient(bench.namespace, ours[0][0].pods, concurrency)
            kubelet = Kubelet(bench.cluster.layout, bench.namespace, ours[0][0].pods)
            async with kubelet, official:
                ways: tuple[Way, ...] = (kubelet, *(way for way, _ in ours), *acks, official)
                rows += await alternate(bench, ways, concurrency, passes, commands)
    return {"cold": cold, "commands": rows}


async def alternate(
    bench: Bench, ways: Sequence[Way], concurrency: int, passes: int, commands: int
) -> list[dict[str, Any]]:
    """In passes over all ways, each begun by another one, so that slow minutes hit all alike."""
    tallies = [Tally(concurrency) for _ in ways]
    for number in range(passes):
        pairs = list(zip(ways, tallies, strict=True))
        first = number % len(pairs)
        for way, tally in pairs[first:] + pairs[:first]:
            await asyncio.sleep(SETTLE_SECONDS)
            await tally.run(lambda number, way=way: way.run(number % bench.plan.sandboxes), commands)  # type: ignore[misc]
            bench.say(f"  {concurrency} at once, pass {number + 1} of {passes}: {way.name} {tally.row()}")
    rows = [{"way": way.name, **tally.row()} for way, tally in zip(ways, tallies, strict=True)]
    for row in rows:
        row["times_kubelet"] = round(row["p50_ms"] / rows[0]["p50_ms"], 3)
    return rows


async def measure_transfers(bench: Bench) -> dict[str, Any]:
    """A file of random bytes there and back; what came back is compared, and a difference is a result too."""
    ack = Ack(bench.namespace, IMAGE)
    async with bench.ours(1) as ours, ack:
        await start_all(ack, 1)
        movers: tuple[Mover, ...] = (Kubectl(bench.namespace, ours[0][0].pods), *(way for way, _ in ours), ack)
        best: dict[str, dict[str, Any]] = {}
        for number in range(bench.plan.transfers):
            for mover in movers:
                row = await there_and_back(mover, bench.folder, ACK_MEGABYTES if mover is ack else bench.plan.megabytes)
                bench.say(f"  pass {number + 1}: {row}")
                before = best.setdefault(mover.name, row)
                for name in ("upload", "download"):
                    key = f"{name}_mb_per_second"
                    row[key] = max(row[key], before[key])
                best[mover.name] = row | {"is_exact": row["is_exact"] and before["is_exact"]}
    return {"files": list(best.values()), "of": f"the better of {bench.plan.transfers} passes"}


async def there_and_back(mover: Mover, folder: Path, megabytes: int) -> dict[str, Any]:
    source, back = folder / "source.bin", folder / "back.bin"
    back.unlink(missing_ok=True)
    with source.open("wb") as handle:
        for _ in range(megabytes):
            handle.write(os.urandom(1_000_000))
    up: dict[str, Any] = {}
    down: dict[str, Any] = {}
    async with cost(up, megabytes):
        await mover.upload(source, "/tmp/benchmark.bin")
    async with cost(down, megabytes):
        await mover.download("/tmp/benchmark.bin", back)
    return {
        "way": mover.name,
        "megabytes": megabytes,
        "upload_mb_per_second": round(megabytes / up["seconds"], 1),
        "download_mb_per_second": round(megabytes / down["seconds"], 1),
        "upload_client_cpu_ms_per_mb": up["client_cpu_ms_each"],
        "download_client_cpu_ms_per_mb": down["client_cpu_ms_each"],
        "is_exact": filecmp.cmp(source, back, shallow=False),
    }


async def measure_many(bench: Bench) -> dict[str, Any]:
    """Acquire and hold sandboxes that kwok plays: what they cost the client and the API server, not the node."""
    count, per_node = bench.plan.held, 500
    nodes = [fake_node(f"{bench.namespace}-{number}", pods=per_node) for number in range(count // per_node + 1)]
    bench.cluster.apply(*nodes)
    labels = tuple(f"{key}={value}" for key, value in NODE_SELECTOR.items())
    placed: dict[str, Any] = {"node_selector": labels, "tolerations": (TOLERATION,)}
    provider = bench.provider(**placed, start_concurrency=256, starts_per_node=128)
    found: dict[str, Any] = {"sandboxes": count}
    try:
        await (await provider.acquire(spec_of("first", IMAGE))).release()
        gc.collect()
        before = memory_mib()
        times = Times()
        async with cost(found, count):
            held = await asyncio.gather(
                *(times.take(provider.acquire(spec_of(f"held-{number}", IMAGE))) for number in range(count))
            )
        gc.collect()
        found["client_memory_mib"] = round(memory_mib() - before, 1)
        check("ours", "how many are held", count, len({sandbox.spec.sandbox_id for sandbox in held}))
        released: dict[str, Any] = {}
        async with cost(released, count):
            await asyncio.gather(*(sandbox.release() for sandbox in held))
        found["release"] = released
    finally:
        await provider.close()
        bench.cluster.kubectl("delete", "node", *(node["metadata"]["name"] for node in nodes), "--wait=false")
    return found | {"acquire": times.summary()}
