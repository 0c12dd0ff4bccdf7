"""How large a pool of warm sandboxes should be. Pure: demand and time go in, a size comes out.

The pool grows at once with demand and shrinks only after it was too large for a while, so that the pause between two
batches, when nothing is in use, does not throw away what the next one needs. It is never outside its bounds, and never
smaller than those who wait for a sandbox, up to the upper bound. Pools of one task each share that bound.
"""

import math
from dataclasses import dataclass, replace

from agentic.sandbox.settings import PoolSettings


@dataclass(frozen=True, slots=True)
class Demand:
    """One look at a pool's customers."""

    in_use: int
    """Sandboxes that were taken and not given back."""
    waiting: int
    """Requests that have none yet."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A pool's size, and since when it was more than needed."""

    replicas: int = 0
    too_large_since: float | None = None


def wanted(settings: PoolSettings, demand: Demand, others: int = 0) -> int:
    """Unused sandboxes that this demand justifies, when the other pools have so many."""
    if settings.by == "task":
        is_busy = demand.in_use + demand.waiting > 0
        replicas = 1 if settings.replicas is None else settings.replicas
        return max(min(replicas, settings.maximum - others), 0) if is_busy else 0
    spare = math.ceil(settings.spare * (demand.in_use + demand.waiting))
    return min(max(demand.waiting + spare, settings.minimum), settings.maximum)


def resize(settings: PoolSettings, size: PoolSize, demand: Demand, now: float, others: int = 0) -> PoolSize:
    """The size from now on."""
    needed = wanted(settings, demand, others)
    if needed >= size.replicas:
        return PoolSize(needed)
    since = now if size.too_large_since is None else size.too_large_since
    if now - since >= settings.idle_seconds:
        return PoolSize(needed)
    return replace(size, too_large_since=since)
