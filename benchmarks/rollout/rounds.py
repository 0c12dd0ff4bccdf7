"""Rounds of the benchmark: a proxy, some workers at once, and what they measured together."""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from agentic.rollout.records import Phase, read_records

from .world import FAULT_NAMES, FAULTS, is_solved, write_world

PROCESS_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Shape:
    """One round."""

    trials: int
    workers: int = 1
    start: float = 1.0
    command: float = 0.1
    reply: float = 0.5
    faulty: bool = False
    first: int = 0


async def run_round(who: str, shape: Shape) -> dict[str, Any]:
    """Measured by all workers together; with faults also what the records say of them."""
    with tempfile.TemporaryDirectory(prefix="rollout-benchmark-") as name:
        folder = Path(name)
        layer = write_world(folder)
        async with _proxy(folder, shape) as (where, proxy_pid):
            share = shape.trials // shape.workers
            orders = [
                {
                    "who": who,
                    "first": shape.first + number * share,
                    "count": share,
                    "folder": name,
                    "layer": str(layer),
                    "control_url": where["url"],
                    "control_key": where["key"],
                    "start_delay": shape.start,
                    "command_delay": shape.command,
                    "faulty": shape.faulty,
                    "missing_images": _count(shape.first + number * share, share, "image") if shape.faulty else 0,
                }
                for number in range(shape.workers)
            ]
            cpu_before = _cpu_seconds(proxy_pid)
            parts = await asyncio.gather(*(_work(order) for order in orders))
            proxy_cpu = _cpu_seconds(proxy_pid) - cpu_before
        row = {"who": who, "workers": shape.workers, **_together(parts), "proxy_cpu_ms_per_trial": proxy_cpu}
        row["proxy_cpu_ms_per_trial"] = round(1000 * proxy_cpu / shape.trials, 2)
        if shape.faulty:
            row["faults"] = _faults(folder, shape)
    return row


def _together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    trials, seconds = sum(part["trials"] for part in parts), max(part["seconds"] for part in parts)
    rewards = [reward for part in parts for reward in part["rewards"]]
    graded = [reward for reward in rewards if reward is not None]
    return {
        "trials": trials,
        "seconds": round(seconds, 1),
        "trials_per_second": round(trials / seconds, 1),
        "lag_p99_ms": max(part["lag_p99_ms"] for part in parts),
        "lag_max_ms": max(part["lag_max_ms"] for part in parts),
        "cpu_ms_per_trial": round(1000 * sum(part["cpu_seconds"] for part in parts) / trials, 2),
        "system_ms_per_trial": round(1000 * sum(part["system_seconds"] for part in parts) / trials, 2),
        "memory_kb_per_trial": round(sum(part["memory_bytes"] for part in parts) / trials / 1024, 1),
        "yardstick_ms": max(part["yardstick_ms"] for part in parts),
        "most_sandboxes": sum(part["most_sandboxes"] for part in parts),
        "sandboxes_left": sum(part["sandboxes_left"] for part in parts),
        "graded": len(graded),
        "mean_reward": round(mean(graded), 6) if graded else None,
    }


def _count(first: int, count: int, fault: str) -> int:
    place = FAULTS.index(fault)
    return sum(number % 10 == place for number in range(first, first + count))


def _faults(folder: Path, shape: Shape) -> dict[str, Any]:
    """What was injected, what the records count, and whether every reward is what it is without faults."""
    records = read_records(folder, Phase.TRAIN)
    reasons = [reason for record in records for reason in (*record.lost, record.infra_reason) if reason]
    counted = Counter(reason.partition(":")[0] for reason in reasons)
    injected: Counter[str] = Counter()
    for fault, name in FAULT_NAMES.items():
        injected[name] += _count(shape.first, shape.trials, fault)
    expected = {f"r{number}": float(is_solved(number)) for number in range(shape.first, shape.first + shape.trials)}
    return {
        "injected": dict(sorted(injected.items())),
        "counted": dict(sorted(counted.items())),
        "fault_free_mean_reward": round(mean(expected.values()), 6),
        "rewards_as_without_faults": {record.rollout_id: record.reward for record in records} == expected,
    }


@contextlib.asynccontextmanager
async def _proxy(folder: Path, shape: Shape) -> AsyncIterator[tuple[dict[str, str], int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.rollout.serving", str(folder), str(shape.reply)),
        "faulty" if shape.faulty else "sound",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the proxy's process has no pipes")
    try:
        yield json.loads(await process.stdout.readline()), process.pid
    finally:
        process.stdin.close()
        await process.wait()


async def _work(order: dict[str, Any]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "benchmarks.rollout.worker", json.dumps(order)),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PROCESS_SECONDS):
        output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"a worker ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


def _cpu_seconds(pid: int) -> float:
    import os

    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
