"""What a sandbox costs: start, command, release, in wall-clock and CPU time, one at a time and many at once.

    python benchmarks/sandbox_exec.py [--concurrency 1 32] [--sandboxes 64] [--commands 4]

Prints one JSON object. CPU is that of this process, of its children, and of what ran inside, from getrusage and from
the spawner's own accounting in /proc.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentic.sandbox.base import SandboxProvider, SandboxSpec
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.rootfs import Rootfs
from agentic.sandbox.settings import BubblewrapSandbox

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
COMMANDS = {"true": "true", "python": "python3 -S -E -c 'print(1)'"}


def cpu_seconds() -> tuple[float, float]:
    """Of this process, and of all that descends from it (the spawner's reaped children included)."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    descendants = 0.0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            descendants += sum(map(int, fields[11:15])) / TICKS_PER_SECOND
    return own.ru_utime + own.ru_stime, descendants


async def one(
    provider: SandboxProvider, rootfs: Rootfs, number: str, commands: int, times: dict[str, list[float]]
) -> None:
    async def timed(name: str, work: Any) -> Any:
        started = time.perf_counter()
        result = await work
        times.setdefault(name, []).append((time.perf_counter() - started) * 1000)
        return result

    sandbox = await timed("start", provider.acquire(SandboxSpec("benchmark", number, rootfs)))
    for _ in range(commands):
        for name, command in COMMANDS.items():
            await timed(name, sandbox.exec(command))
    await timed("release", sandbox.release())


async def measure(concurrency: int, sandboxes: int, commands: int) -> dict[str, Any]:
    settings = BubblewrapSandbox()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder), settings)
        rootfs = store.ensure_base()
        provider = make_provider(settings, store)
        times: dict[str, list[float]] = {}
        await one(provider, rootfs, f"warm-{concurrency}", 1, {})
        gate, before, started = asyncio.Semaphore(concurrency), cpu_seconds(), time.perf_counter()

        async def bounded(number: int) -> None:
            async with gate:
                await one(provider, rootfs, f"{concurrency}-{number}", commands, times)

        await asyncio.gather(*(bounded(number) for number in range(sandboxes)))
        wall, after = time.perf_counter() - started, cpu_seconds()
        await provider.close()
    return {
        "concurrency": concurrency,
        "sandboxes": sandboxes,
        "commands_each": commands * len(COMMANDS),
        "wall_seconds": round(wall, 3),
        "own_cpu_ms_per_sandbox": round((after[0] - before[0]) * 1000 / sandboxes, 2),
        "all_cpu_ms_per_sandbox": round((sum(after) - sum(before)) * 1000 / sandboxes, 2),
        "median_ms": {name: round(statistics.median(values), 2) for name, values in times.items()},
        "p95_ms": {name: round(statistics.quantiles(values, n=20)[-1], 2) for name, values in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--sandboxes", type=int, default=64)
    parser.add_argument("--commands", type=int, default=4)
    arguments = parser.parse_args()
    results = [asyncio.run(measure(c, arguments.sandboxes, arguments.commands)) for c in arguments.concurrency]
    json.dump(results, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
