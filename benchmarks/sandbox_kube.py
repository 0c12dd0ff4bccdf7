"""The client's own cost: commands and files in pods against an API server in memory, in a process of its own.

    .venv/bin/python benchmarks/sandbox_kube.py [--out docs/results/sandbox-client.json]

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
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import PODS
from agentic.cluster.settings import KubeClientSettings
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget
from agentic.sandbox.kube.transfers import Transfers

DOUBLE = Path(__file__).resolve().parents[1] / "tests" / "doubles" / "kube_api.py"
COMMANDS, SLEEP_SECONDS = 500, 3
FILE_BYTES = 400 * 1000 * 1000
POD_COUNT = 4


@contextmanager
def server() -> Iterator[str]:
    """Its address."""
    process = subprocess.Popen([sys.executable, str(DOUBLE)], stdout=subprocess.PIPE, text=True)
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


async def parallel(pods: list[PodExec]) -> dict[str, Any]:
    threads = threading.active_count()
    most = threads

    async def one(number: int) -> int:
        nonlocal most
        result = await pods[number % len(pods)].run(ExecRequest(["sleep", str(SLEEP_SECONDS)], 60.0))
        most = max(most, threading.active_count())
        return result.exit_code

    started, cpu = time.perf_counter(), time.process_time()
    codes = set(await asyncio.gather(*(one(number) for number in range(COMMANDS))))
    return {
        "commands": COMMANDS,
        "each_sleeps_seconds": SLEEP_SECONDS,
        "exit_codes": sorted(codes),
        "wall_seconds": round(time.perf_counter() - started, 2),
        "client_cpu_ms_each": round((time.process_time() - cpu) * 1000 / COMMANDS, 3),
        "threads_added": most - threads,
    }


async def sequence(pod: PodExec) -> dict[str, Any]:
    times = []
    for _ in range(200):
        started = time.perf_counter()
        await pod.run(ExecRequest(["true"], 30.0))
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return {"commands": len(times), "p50_ms": round(statistics.median(times), 2), "p99_ms": round(times[-3], 2)}


async def files(pod: PodExec, folder: Path) -> dict[str, Any]:
    source, back, transfers = folder / "source", folder / "back", Transfers()
    with source.open("wb") as handle:
        for _ in range(FILE_BYTES // 1_000_000):
            handle.write(os.urandom(1_000_000))
    figures: dict[str, Any] = {"bytes": FILE_BYTES}
    for name in ("upload", "download"):
        started = time.perf_counter()
        if name == "upload":
            await transfers.upload(pod, source, "/app/file")
        else:
            await transfers.download(pod, "/app/file", back, limit_bytes=1 << 30)
        figures[f"{name}_mb_per_second"] = round(FILE_BYTES / 1e6 / (time.perf_counter() - started), 1)
    transfers.close()
    return {**figures, "is_exact": filecmp.cmp(source, back, shallow=False)}


async def measure(address: str) -> dict[str, Any]:
    settings = KubeClientSettings(requests_per_second=10_000, request_burst=10_000, max_concurrent_requests=64)
    with tempfile.TemporaryDirectory() as folder:
        async with KubeClient(FixedCredentials(Access(address)), settings) as api:
            pods = await make_pods(api)
            figures = {"sequence": await sequence(pods[0]), "parallel": await parallel(pods)}
            figures["files"] = await files(pods[0], Path(folder))
            await asyncio.gather(*(pod.close() for pod in pods))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file; printed otherwise")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
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
