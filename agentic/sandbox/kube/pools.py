"""The warm pools of a provider: made with the first customer, scaled with demand, removed at the end.

What a pool is made of is the provider's; how large it should be is `pool_size`'s. Scaling goes through the scale
subresource alone, since the rest of a pool's spec is nobody's to change while its controller works on it. A pool
belongs to one owner's lease, and goes with it when nobody is left to remove it. One that is gone although we want it is
made anew: for whoever says that it is missing (`repair`, `doubt`), and whenever its owner's lease is another one.
Invariants: `close` removes every object that we made, and one that resists keeps no other alive.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import AlreadyExistsError, NotFoundError
from agentic.cluster.resources import JsonObject, Resource, name_of, uid_of
from agentic.sandbox.kube.ending import each, to_its_end
from agentic.sandbox.kube.manifests import Resources, owned_by
from agentic.sandbox.kube.names import OWNER_LABEL, object_name, readable_name
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
    lease: str = ""
    """Uid of the lease that its objects belong to."""
    is_doubtful: bool = False
    """Whether somebody has missed it."""

    @property
    def demand(self) -> Demand:
        return Demand(self.in_use, self.waiting)

    @property
    def is_suspect(self) -> bool:
        """Whether it may be gone: what belonged to an earlier lease goes with that."""
        return self.is_doubtful or self.lease != uid_of(self.owner.lease)


type Build = Callable[[Pool], list[tuple[Resource, JsonObject]]]
"""The objects of a pool, in the order in which they are made; the last one is scaled."""


class Pools:
    """All pools of a provider."""

    def __init__(self, api: KubeApi, settings: PoolSettings, build: Build) -> None:
        self._api, self._settings, self._build = api, settings, build
        self._pools: dict[PoolKey, Pool] = {}
        self._made: dict[PoolKey, list[tuple[Resource, str]]] = {}
        self._locks: dict[PoolKey, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Unused sandboxes that each pool keeps, for whoever watches."""
        return {pool.name: pool.size.replicas for pool in self._pools.values()}

    async def enter(self, owner: Owner, key: PoolKey) -> Pool:
        """Ask for a sandbox of a pool, which is made when there is none."""
        async with self._lock(key):
            pool = self._pools.get(key)
            if pool is None:
                pool = await to_its_end(self._make(owner, key))
            elif pool.is_suspect:
                await to_its_end(self._ensure(pool))
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

    def doubt(self, pool: Pool) -> None:
        """Somebody misses it: it is looked after soon, while they wait."""
        pool.is_doubtful = True
        self._changed.set()

    async def repair(self, pool: Pool) -> bool:
        """Make what is gone of a pool anew; whether anything was."""
        async with self._lock(pool.key):
            return await to_its_end(self._ensure(pool))

    def _lock(self, key: PoolKey) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _make(self, owner: Owner, key: PoolKey) -> Pool:
        pool = Pool(readable_name(key.readable), owner, key, PoolSize())
        pool.size = self._size(pool, Demand(0, 1))
        self._pools[key] = pool
        try:
            await self._ensure_named(pool)
        except BaseException:
            del self._pools[key]
            raise
        if self._task is None:
            self._task = asyncio.create_task(self._keep(), name="pools")
        return pool

    async def _ensure_named(self, pool: Pool) -> None:
        """Under its own name, or under a longer one when others have that."""
        try:
            await self._ensure(pool)
        except AlreadyExistsError:
            key = pool.key
            pool.name = object_name(key.readable, pool.owner.name, key.image, key.resources.name)
            await self._ensure(pool)

    async def _ensure(self, pool: Pool) -> bool:
        """Make what is not there of a pool; whether anything was not."""
        made, lease, is_new = self._made.setdefault(pool.key, []), pool.owner.lease, False
        for resource, body in self._build(pool):
            place = (resource, name_of(body))
            try:
                await self._api.create(resource, body)
                is_new = True
            except AlreadyExistsError:
                if place not in made:
                    await self._require_ours(pool, *place)
                if pool.lease != uid_of(lease):
                    await self._adopt(resource, body, lease)
            if place not in made:
                made.append(place)
        pool.lease, pool.is_doubtful = uid_of(lease), False
        return is_new

    async def _require_ours(self, pool: Pool, resource: Resource, name: str) -> None:
        """One that we made without learning of it, since the answer got lost, is ours; any other is somebody else's.
        Raises AlreadyExistsError, and NotFoundError when it has just gone."""
        found = await self._api.get(resource, name)
        if (found["metadata"].get("labels") or {}).get(OWNER_LABEL) != pool.owner.name:
            raise AlreadyExistsError(f"{resource.plural} {name} is there, and not ours")

    async def _adopt(self, resource: Resource, body: JsonObject, lease: JsonObject) -> None:
        """Save an object from going with the lease that it belonged to, or make it when it has just gone."""
        try:
            await self._api.patch(resource, name_of(body), {"metadata": {"ownerReferences": owned_by(lease)}})
        except NotFoundError:
            await self._api.create(resource, body)

    async def _keep(self) -> None:
        """Look at every pool when demand changes, and now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.idle_seconds / LOOKS_PER_IDLE):
                    await self._changed.wait()
            self._changed.clear()
            await self.look()

    async def look(self) -> None:
        """Bring every pool to the size that its demand justifies; trouble with one keeps no other waiting."""
        await each((f"pool {pool.name} was not brought to its size", self._fit(pool)) for pool in self._pools.values())

    async def _fit(self, pool: Pool) -> None:
        async with self._lock(pool.key):
            if self._pools.get(pool.key) is not pool:
                return
            before, size = pool.size, self._size(pool, pool.demand)
            if self._settings.by == "task" and not size.replicas and not pool.in_use and not pool.waiting:
                await self._remove(pool.key)
                return
            pool.size = size
            try:
                if pool.is_suspect:
                    await self._ensure(pool)
                if size.replicas != before.replicas:
                    await self._scale(pool)
            except BaseException:
                pool.size = before
                raise

    def _size(self, pool: Pool, demand: Demand) -> PoolSize:
        others = sum(other.size.replicas for other in self._pools.values() if other is not pool)
        return resize(self._settings, pool.size, demand, time.monotonic(), others)

    async def _scale(self, pool: Pool) -> None:
        resource, name = self._made[pool.key][-1]
        try:
            await self._api.patch_scale(resource, name, pool.size.replicas)
        except NotFoundError:
            log.warning("pool %s is gone: it is made anew", pool.name)
            await self._ensure(pool)
            await self._api.patch_scale(resource, name, pool.size.replicas)

    async def _remove(self, key: PoolKey) -> None:
        """Of a pool that stays known until all of it is gone."""
        made = self._made.get(key, [])
        while made:
            resource, name = made[-1]
            await self._api.delete(resource, name)
            made.pop()
        self._made.pop(key, None)
        self._pools.pop(key, None)

    async def close(self) -> None:
        """Remove all pools. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await each((f"pool {key.readable} is left to its lease", self._remove(key)) for key in list(self._made))
        self._made, self._pools = {}, {}
