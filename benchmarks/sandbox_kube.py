"""The client's own cost: commands and files in pods against an API server in memory, in a process of its own.

    .venv/bin/python -m benchmarks.sandbox_kube [--out docs/results/sandbox-client.json]
    .venv/bin/python -m testbed run .venv/bin/python -m benchmarks.sandbox_kube --in-cluster agentic/base:local

What is measured is this side: how many commands one event loop follows without a thread, what each costs in CPU, how
fast files pass. The server's processes share the machine, so wall-clock figures are upper bounds.
"""

import argparse
import asyncio
import filecmp
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials, LoadedCredentials
from agentic.cluster.resources import PODS, JsonObject
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.watching import Watcher
from agentic.sandbox.kube.execution import ExecRequest, SandboxExec
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget
from agentic.sandbox.kube.server_exec import ExecServers
from agentic.sandbox.kube.transfers import Transfers

DOUBLE = Path(__file__).resolve().parents[1] / "tests" / "doubles" / "kube_api.py"
BINARY, SERVER = DOUBLE.parents[2] / "build" / "exec-server", "/tmp/exec-server"
UNPACED = KubeClientSettings(requests_per_second=10_000, request_burst=10_000, max_concurrent_requests=64)
COMMANDS, SLEEP_SECONDS = 500, 3
FILE_BYTES = 400 * 1000 * 1000
POD_COUNT = 4
CLUSTER_COMMANDS, CLUSTER_FILE_BYTES = 50, 100 * 1000 * 1000
"""A node of two cores starts some tens of commands a second at most; more only wait."""


@contextmanager
def server() -> Iterator[str]:
    """Its address."""
    words = [sys.executable, str(DOUBLE), "--plain"]
    environment = {**os.environ, "PYTHONPATH": str(DOUBLE.parents[2])}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no output")
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


async def make_pods(api: KubeClient) -> list[PodExec]:
    names = [f"p{number}" for number in range(POD_COUNT)]
    for name in names:
        await api.create(PODS, {**PODS.head(name), "spec": {"containers": [{"name": "main"}]}})
    pods = [PodExec(api, PodTarget(name, "main")) for name in names]
    for pod in pods:
        await pod.run(ExecRequest("true", 30.0))
    return pods


async def parallel(pods: Sequence[SandboxExec], commands: int) -> dict[str, Any]:
    threads = threading.active_count()
    most = threads

    async def one(number: int) -> int:
        nonlocal most
        result = await pods[number % len(pods)].run(ExecRequest(["sleep", str(SLEEP_SECONDS)], 60.0))
        most = max(most, threading.active_count())
        return result.exit_code

    started, cpu = time.perf_counter(), time.process_time()
    codes = set(await asyncio.gather(*(one(number) for number in range(commands))))
    return {
        "commands": commands,
        "each_sleeps_seconds": SLEEP_SECONDS,
        "exit_codes": sorted(codes),
        "wall_seconds": round(time.perf_counter() - started, 2),
        "client_cpu_ms_each": round((time.process_time() - cpu) * 1000 / commands, 3),
        "threads_added": most - threads,
    }


async def sequence(pod: SandboxExec) -> dict[str, Any]:
    times = []
    for _ in range(200):
        started = time.perf_counter()
        await pod.run(ExecRequest(["true"], 30.0))
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return {"commands": len(times), "p50_ms": round(statistics.median(times), 2), "p99_ms": round(times[-3], 2)}


async def files(pod: SandboxExec, folder: Path, file_bytes: int) -> dict[str, Any]:
    source, back, transfers = folder / "source", folder / "back", Transfers()
    with source.open("wb") as handle:
        for _ in range(file_bytes // 1_000_000):
            handle.write(os.urandom(1_000_000))
    figures: dict[str, Any] = {"bytes": file_bytes}
    for name in ("upload", "download"):
        started = time.perf_counter()
        if name == "upload":
            await transfers.upload(pod, source, "/tmp/file")
        else:
            await transfers.download(pod, "/tmp/file", back, limit_bytes=1 << 30)
        figures[f"{name}_mb_per_second"] = round(file_bytes / 1e6 / (time.perf_counter() - started), 1)
    transfers.close()
    return {**figures, "is_exact": filecmp.cmp(source, back, shallow=False)}


async def figures_of(channels: Sequence[SandboxExec], commands: int, file_bytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            "sequence": await sequence(channels[0]),
            "parallel": await parallel(channels, commands),
            "files": await files(channels[0], Path(folder), file_bytes),
        }


async def measure(address: str) -> dict[str, Any]:
    """WebSocket exec against the server in memory, and an exec server of the same machine."""
    async with KubeClient(FixedCredentials(Access(address)), UNPACED) as api:
        pods = await make_pods(api)
        figures = {"websocket": await figures_of(pods, COMMANDS, FILE_BYTES)}
        await asyncio.gather(*(pod.close() for pod in pods))
    if shutil.which("go") is not None:
        sys.path.insert(0, str(DOUBLE.parent))
        from exec_server_rig import ExecServerRig  # type: ignore[import-not-found]

        async with ExecServerRig() as rig:
            figures["exec_server"] = await figures_of([await rig.connect()], COMMANDS, FILE_BYTES)
    return figures


async def measure_in_cluster(image: str) -> dict[str, Any]:
    """Both ways into the same pods of a real cluster, whose addresses this process has to reach."""
    names = [f"bench-exec-{os.getpid()}-{number}" for number in range(POD_COUNT)]
    container = {"name": "main", "image": image, "command": ["sleep", "1000000"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    servers, transfers = ExecServers(), Transfers()
    async with KubeClient(LoadedCredentials(), UNPACED) as api, Watcher(api, PODS) as watcher:
        try:
            for name in names:
                await api.create(PODS, {**PODS.head(name), "spec": spec})
            pods, channels = [], []
            for name in names:
                address = await watcher.wait_for(name, running_address, timeout_seconds=60)
                pod = PodExec(api, PodTarget(name, "main"))
                await transfers.upload(pod, BINARY, SERVER)
                await pod.run(ExecRequest(f"setsid {SERVER} serve > /dev/null 2>&1 & sleep 0.5", 30.0))
                pods.append(pod)
                channels.append(await servers.connect(name, address, pod, program=(SERVER,)))
            figures = {"websocket": await figures_of(pods, CLUSTER_COMMANDS, CLUSTER_FILE_BYTES)}
            figures["exec_server"] = await figures_of(channels, CLUSTER_COMMANDS, CLUSTER_FILE_BYTES)
            await asyncio.gather(*(pod.close() for pod in pods))
        finally:
            await asyncio.gather(*(api.delete(PODS, name, grace_period_seconds=0) for name in names))
            await servers.close()
            transfers.close()
    return figures


def running_address(pod: JsonObject | None) -> str | None:
    status = (pod or {}).get("status", {})
    return status.get("podIP") if status.get("phase") == "Running" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file; printed otherwise")
    parser.add_argument("--in-cluster", metavar="IMAGE", help="measure in pods of this image instead (KUBECONFIG)")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    if arguments.in_cluster is not None:
        figures = asyncio.run(measure_in_cluster(arguments.in_cluster))
    else:
        with server() as address:
            figures = asyncio.run(measure(address))
    figures["client_peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures["machine"] = {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(load, 1),
    }
    text = json.dumps(figures, indent=2) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
