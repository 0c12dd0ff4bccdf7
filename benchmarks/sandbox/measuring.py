"""Times, and what they cost this process: percentiles, CPU, memory, loop stalls. No knowledge of sandboxes."""

import asyncio
import contextlib
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class WrongResultError(Exception):
    """Something did not do what it was asked to."""


@dataclass(slots=True)
class Times:
    """Seconds of many alike."""

    seconds: list[float] = field(default_factory=list)

    async def take[T](self, work: Awaitable[T]) -> T:
        started = time.perf_counter()
        result = await work
        self.seconds.append(time.perf_counter() - started)
        return result

    def summary(self) -> dict[str, float]:
        """In milliseconds."""
        ordered = sorted(self.seconds)
        return {
            "count": len(ordered),
            "p50_ms": round(statistics.median(ordered) * 1000, 1),
            "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 1),
        }


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def memory_mib() -> float:
    """Resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@contextlib.asynccontextmanager
async def cost(into: dict[str, Any], per: int) -> AsyncIterator[None]:
    """Wall-clock time of the block, and CPU for each of `per` things in it."""
    started, before = time.perf_counter(), cpu_seconds()
    yield
    into["seconds"] = round(time.perf_counter() - started, 3)
    into["client_cpu_ms_each"] = round((cpu_seconds() - before) * 1000 / per, 2)


async def many(work: Callable[[int], Awaitable[None]], count: int, concurrency: int) -> dict[str, Any]:
    """Run `work(number)` for all numbers, so many at a time: latencies of what went well, rate and cost."""
    times, numbers = Times(), iter(range(count))
    failures: list[str] = []

    async def worker() -> None:
        for number in numbers:
            try:
                await times.take(work(number))
            except WrongResultError as error:
                failures.append(str(error))

    found: dict[str, Any] = {}
    async with cost(found, count), asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, count)):
            group.create_task(worker())
    rate = {"per_second": round(len(times.seconds) / found["seconds"], 1), "failed": len(failures)}
    return {"concurrency": concurrency, **times.summary(), **rate, **found} | (
        {"first_failure": failures[0]} if failures else {}
    )
