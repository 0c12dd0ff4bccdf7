"""The warm pools of a provider: made with the first customer, scaled with demand, removed at the end.

What a pool is made of is the provider's; how large it should be is `pool_size`'s. Scaling goes through the scale
subresource alone, since the rest of a pool's spec is nobody's to change while its controller works on it. A pool
belongs to one owner's lease, and goes with it when nobody is left to remove it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import AlreadyExistsError, NotFoundError
from agentic.cluster.resources import JsonObject, Resource
from agentic.errors import AgenticError
from agentic.sandbox.kube.manifests import Resources
from agentic.sandbox.kube.names import object_name, readable_name
from agentic.sandbox.kube.owner import Owner
from agentic.sandbox.kube.pool_size import Demand, PoolSize, resize
from agentic.sandbox.settings import PoolSettings

log = logging.getLogger(__name__)

LOOKS_PER_IDLE = 8
"""How often a pool is looked at in the time after which it shrinks."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """Sandboxes that may come from the same pool."""

    owner: str
    image: str
    resources: Resources
    readable: str
    """What the pool is called."""


@dataclass(slots=True)
class Pool:
    """One pool as we see it."""

    name: str
    owner: Owner
    key: PoolKey
    size: PoolSize
    in_use: int = 0
    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def demand(self) -> Demand:
        return Demand(self.in_use, self.waiting)


type Build = Callable[[Pool], list[tuple[Resource, JsonObject]]]
"""The objects of a pool, in the order in which they are made; the last one is scaled."""


class Pools:
    """All pools of a provider."""

    def __init__(self, api: KubeApi, settings: PoolSettings, build: Build) -> None:
        self._api, self._settings, self._build = api, settings, build
        self._pools: dict[PoolKey, Pool] = {}
        self._made: dict[PoolKey, list[tuple[Resource, str]]] = {}
        self._making = asyncio.Lock()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Unused sandboxes that each pool keeps, for whoever watches."""
        return {pool.name: pool.size.replicas for pool in self._pools.values()}

    async def enter(self, owner: Owner, key: PoolKey) -> Pool:
        """Ask for a sandbox of a pool, which is made when there is none."""
        async with self._making:
            pool = self._pools.get(key) or await self._make(owner, key)
        pool.waiting += 1
        self._changed.set()
        return pool

    def settle(self, pool: Pool) -> None:
        """The sandbox that was asked for is taken."""
        pool.waiting -= 1
        pool.in_use += 1
        self._changed.set()

    def leave(self, pool: Pool, *, was_taken: bool) -> None:
        """A sandbox was given back, or is no longer wanted."""
        if was_taken:
            pool.in_use -= 1
        else:
            pool.waiting -= 1
        self._changed.set()

    async def _make(self, owner: Owner, key: PoolKey) -> Pool:
        size = resize(self._settings, PoolSize(), Demand(0, 1), time.monotonic())
        pool = Pool(readable_name(key.readable), owner, key, size)
        try:
            await self._create(pool)
        except AlreadyExistsError:
            pool.name = object_name(key.readable, owner.name, key.image, key.resources.name)
            await self._create(pool)
        self._pools[key] = pool
        if self._task is None:
            self._task = asyncio.create_task(self._keep(), name="pools")
        return pool

    async def _create(self, pool: Pool) -> None:
        made = self._made.setdefault(pool.key, [])
        for resource, body in self._build(pool):
            await self._api.create(resource, body)
            made.append((resource, body["metadata"]["name"]))

    async def _keep(self) -> None:
        """Look at every pool when demand changes, and now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.idle_seconds / LOOKS_PER_IDLE):
                    await self._changed.wait()
            self._changed.clear()
            await self.look()

    async def look(self) -> None:
        """Bring every pool to the size that its demand justifies."""
        for pool in list(self._pools.values()):
            size = resize(self._settings, pool.size, pool.demand, time.monotonic())
            try:
                if size.replicas != pool.size.replicas:
                    await self._scale(pool, size)
                pool.size = size
            except AgenticError as error:
                log.warning("pool %s was not scaled to %d, which is tried again: %s", pool.name, size.replicas, error)

    async def _scale(self, pool: Pool, size: PoolSize) -> None:
        resource, name = self._made[pool.key][-1]
        try:
            await self._api.patch_scale(resource, name, size.replicas)
        except NotFoundError:
            log.warning("pool %s is gone: it is made anew", pool.name)
            self._made[pool.key].clear()
            pool.size = size
            with contextlib.suppress(AlreadyExistsError):
                await self._create(pool)

    async def close(self) -> None:
        """Remove all pools. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        made, self._made, self._pools = self._made, {}, {}
        for objects in made.values():
            for resource, name in reversed(objects):
                await self._api.delete(resource, name)
