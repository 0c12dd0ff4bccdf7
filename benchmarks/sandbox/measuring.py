"""Times, and what they cost this process: percentiles, CPU, memory, loop stalls. No knowledge of sandboxes."""

import asyncio
import contextlib
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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


@dataclass(slots=True)
class Tally:
    """Commands of one way, in passes that alternate with those of others, so that a slow minute hits all alike."""

    concurrency: int
    times: Times = field(default_factory=Times)
    failures: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Commands a second, of each pass: a pass in which the whole machine stood still does not count for the median."""
    cpu_seconds: float = 0.0

    async def run(self, work: Callable[[int], Awaitable[None]], count: int) -> None:
        """`work(number)` for all numbers, so many at a time; only what went well is timed."""
        numbers = iter(range(count))
        done, started, before = len(self.times.seconds), time.perf_counter(), cpu_seconds()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.concurrency, count)):
                group.create_task(self._work_off(work, numbers))
        self.rates.append((len(self.times.seconds) - done) / (time.perf_counter() - started))
        self.cpu_seconds += cpu_seconds() - before

    async def _work_off(self, work: Callable[[int], Awaitable[None]], numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                await self.times.take(work(number))
            except WrongResultError as error:
                self.failures.append(str(error))

    def row(self) -> dict[str, Any]:
        done = len(self.times.seconds)
        return {
            "concurrency": self.concurrency,
            **self.times.summary(),
            "per_second": round(statistics.median(self.rates), 1),
            "client_cpu_ms_each": round(self.cpu_seconds * 1000 / (done + len(self.failures)), 2),
            "failed": len(self.failures),
            **({"first_failure": self.failures[0]} if self.failures else {}),
        }
