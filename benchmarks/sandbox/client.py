"""The client's own cost: commands and files in pods of an API server in memory, which is a process of its own.

The server is `tests/doubles/kube_api.py`: real HTTP, WebSockets and processes on this machine, no TLS and no node. Its
processes share the machine, so wall-clock figures are upper bounds; CPU is this process's alone. The same is measured
of the exec server, as a process of this machine.
"""

import asyncio
import filecmp
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import PODS
from agentic.cluster.settings import KubeClientSettings
from agentic.sandbox.kube.execution import ExecRequest, SandboxExec
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget
from agentic.sandbox.kube.transfers import Transfers
from benchmarks.sandbox.measuring import Times, WrongResultError, cpu_seconds, memory_mib
from benchmarks.sandbox.rounds import Bench

DOUBLES = Path(__file__).parents[2] / "tests/doubles"
UNPACED = KubeClientSettings(requests_per_second=10_000, request_burst=10_000, max_concurrent_requests=64)
COMMANDS, SLEEP_SECONDS = 500, 3
ROUNDS = 5
"""Of the commands at once, of which the one with the median CPU counts: what else the host does moves it by a fifth."""
POD_COUNT = 4


async def measure_client(bench: Bench) -> dict[str, Any]:
    """WebSocket exec, then the exec server."""
    found: dict[str, Any] = {}
    async with server() as address, KubeClient(FixedCredentials(Access(address)), UNPACED) as api:
        pods = await make_pods(api)
        found["websocket"] = await figures_of(pods, bench)
        await asyncio.gather(*(pod.close() for pod in pods))
    if bench.exec_server() is not None:
        sys.path.insert(0, str(DOUBLES))
        from exec_server_rig import ExecServerRig  # type: ignore[import-not-found]

        async with ExecServerRig() as rig:
            found["exec server"] = await figures_of([await rig.connect()], bench)
    return found | {"memory_mib": round(memory_mib(), 1)}


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Its address."""
    words = (str(DOUBLES / "kube_api.py"), "--plain")
    environment = {**os.environ, "PYTHONPATH": str(DOUBLES.parents[1])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        if process.stdout is None:
            raise WrongResultError("the server in memory has no output")
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def make_pods(api: KubeClient) -> list[PodExec]:
    names = [f"p{number}" for number in range(POD_COUNT)]
    for name in names:
        await api.create(PODS, {**PODS.head(name), "spec": {"containers": [{"name": "main"}]}})
    pods = [PodExec(api, PodTarget(name, "main")) for name in names]
    for pod in pods:
        await pod.run(ExecRequest("true", 30.0))
    return pods


async def figures_of(channels: Sequence[SandboxExec], bench: Bench) -> dict[str, Any]:
    return {
        "one after the other": await sequence(channels[0]),
        "at once": sorted([await parallel(channels) for _ in range(ROUNDS)], key=itemgetter("client_cpu_ms_each"))[
            ROUNDS // 2
        ],
        "file": await file(channels[0], bench.folder, bench.plan.megabytes),
    }


async def sequence(pod: SandboxExec) -> dict[str, Any]:
    times = Times()
    for _ in range(200):
        await times.take(pod.run(ExecRequest(["true"], 30.0)))
    return times.summary()


async def parallel(pods: Sequence[SandboxExec]) -> dict[str, Any]:
    most = threads = threading.active_count()

    async def one(number: int) -> int:
        nonlocal most
        result = await pods[number % len(pods)].run(ExecRequest(["sleep", str(SLEEP_SECONDS)], 60.0))
        most = max(most, threading.active_count())
        return result.exit_code

    started, cpu = time.perf_counter(), time.process_time()
    codes = set(await asyncio.gather(*(one(number) for number in range(COMMANDS))))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    if codes != {0}:
        raise WrongResultError(f"commands ended with {sorted(codes)}")
    return {
        "commands": COMMANDS,
        "each_sleeps_seconds": SLEEP_SECONDS,
        "seconds": round(seconds, 2),
        "client_cpu_ms_each": round(cpu * 1000 / COMMANDS, 3),
        "threads_added": most - threads,
    }


async def file(pod: SandboxExec, folder: Path, megabytes: int) -> dict[str, Any]:
    """Random bytes there and back."""
    source, back, transfers = folder / "source", folder / "back", Transfers()
    back.unlink(missing_ok=True)
    with source.open("wb") as handle:
        for _ in range(megabytes):
            handle.write(os.urandom(1_000_000))
    found: dict[str, Any] = {"megabytes": megabytes}
    for name in ("upload", "download"):
        started, cpu = time.perf_counter(), cpu_seconds()
        if name == "upload":
            await transfers.upload(pod, source, "/tmp/benchmark-file")
        else:
            await transfers.download(pod, "/tmp/benchmark-file", back, limit_bytes=1 << 30)
        found[f"{name}_mb_per_second"] = round(megabytes / (time.perf_counter() - started), 1)
        found[f"{name}_client_cpu_ms_per_mb"] = round((cpu_seconds() - cpu) * 1000 / megabytes, 2)
    transfers.close()
    await pod.run(ExecRequest("rm -f /tmp/benchmark-file", 30.0))
    return {**found, "is_exact": filecmp.cmp(source, back, shallow=False)}
