"""The provider of all sandboxes on Kubernetes; pods, OpenKruise and agent-sandbox differ in their `Source` alone.

Owned here: the order of things. The lease and the network policy come before the first sandbox; a sandbox is paced by
the gate while it starts; whatever failed or was cancelled on the way is given back; leases are renewed while sandboxes
are in use; `close` gives back all of it, pools and lease included. Invariants: an object is only removed when it is
surely ours, by its uid; and what this process can't remove any more, the cluster does after the lease.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import (
    AlreadyExistsError,
    CredentialsError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
)
from agentic.errors import AgenticError
from agentic.sandbox.base import ImageReference, Sandbox, SandboxImage, SandboxSpec
from agentic.sandbox.errors import SandboxSetupError, SandboxStartError
from agentic.sandbox.kube.ending import each, to_its_end
from agentic.sandbox.kube.execution import SandboxExec
from agentic.sandbox.kube.manifests import Resources
from agentic.sandbox.kube.names import CONTAINER, object_name, require_safe
from agentic.sandbox.kube.owner import Owner
from agentic.sandbox.kube.pacing import Gate
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget
from agentic.sandbox.kube.prefetch import Prefetch
from agentic.sandbox.kube.sandbox import RemoteSandbox
from agentic.sandbox.kube.server_exec import ExecServers, address_of
from agentic.sandbox.kube.source import Order, Source, Taken
from agentic.sandbox.kube.sweeping import sweep_run
from agentic.sandbox.kube.transfers import Transfers
from agentic.sandbox.settings import KubeSandbox

log = logging.getLogger(__name__)

UNSERVED = re.compile(r'could not find the requested resource|404 page not found|namespaces "')
"""How the API server says that it has no such kind, or no such namespace."""
ASK = "`python -m agentic.sandbox check` names all that is missing"

LOOKS_PER_LEASE = 10
"""How often leases are looked at in the time that they last."""

type Connect = Callable[[], Awaitable[KubeApi]]
type MakeSource = Callable[[KubeApi], Source]


@dataclass(slots=True)
class Owed:
    """A sandbox that could not be given back, as long as that is so."""

    order: Order
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class InUse:
    """A sandbox that was taken."""

    order: Order
    taken: Taken
    sandbox: RemoteSandbox


class KubeProvider:
    """All sandboxes of this process in one namespace."""

    def __init__(self, settings: KubeSandbox, connect: Connect, make_source: MakeSource) -> None:
        self.settings = settings
        self._connect, self._make_source = connect, make_source
        self._api: KubeApi | None = None
        self._source: Source | None = None
        self._owners: dict[str, Owner] = {}
        self.prefetches: dict[str, Prefetch] = {}
        """Of each run, for whoever watches."""
        self._names: set[str] = set()
        self._in_use: dict[str, InUse] = {}
        self._owed: dict[str, Owed] = {}
        self._gate = Gate(settings)
        self._transfers = Transfers()
        self._servers = ExecServers()
        self._setup = asyncio.Lock()
        self._making: dict[str, asyncio.Lock] = {}
        self._acquiring: set[asyncio.Task[Sandbox]] = set()
        self._is_closing = False
        self._looking_after: asyncio.Task[None] | None = None

    async def _connected(self) -> tuple[KubeApi, Source]:
        async with self._setup:
            if self._api is None or self._source is None:
                self._api = await self._connect()
                self._source = self._make_source(self._api)
                self._looking_after = asyncio.create_task(self._look_after(), name="look after sandboxes")
            return self._api, self._source

    async def _owner_of(self, api: KubeApi, run_id: str) -> Owner:
        async with self._making.setdefault(run_id, asyncio.Lock()):
            owner = self._owners.get(run_id)
            if owner is None:
                owner = Owner(api, self.settings, run_id)
                async with contextlib.AsyncExitStack() as unless_started:
                    unless_started.push_async_callback(lambda: to_its_end(owner.close()))
                    await owner.start()
                    unless_started.pop_all()
                self._owners[run_id] = owner
            return owner

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        require_takeable(spec)
        acquiring = asyncio.create_task(self._acquire(spec), name=f"acquire {spec.sandbox_id}")
        self._acquiring.add(acquiring)
        acquiring.add_done_callback(self._acquiring.discard)
        try:
            return await acquiring
        except asyncio.CancelledError:
            if acquiring.done() and not acquiring.cancelled() and acquiring.exception() is None:
                # It ended in the same turn of the loop as we were cancelled in: nobody else knows of its sandbox.
                await asyncio.shield(acquiring.result().release())
            ours = asyncio.current_task()
            if self._is_closing and ours is not None and not ours.cancelling():
                raise SandboxStartError(f"sandbox {spec.sandbox_id} was not started: its provider is closed") from None
            raise

    async def _acquire(self, spec: SandboxSpec) -> Sandbox:
        name = object_name(spec.sandbox_id, spec.run_id)
        if name in self._names:
            raise SandboxStartError(f"sandbox {spec.run_id}/{spec.sandbox_id} runs already: give each its own id")
        self._names.add(name)
        order: Order | None = None
        is_taken = False
        try:
            api, source = await self._connected()
            await self._repay(name)
            owner = await self._owner_of(api, spec.run_id)
            order = Order(owner, name, spec.sandbox_id, spec.reference, self._resources(spec))
            if spec.run_id in self.prefetches:
                self.prefetches[spec.run_id].use(order.image)
            sandbox = await self._take(api, source, order, spec)
            is_taken = True
            return sandbox
        except (CredentialsError, ForbiddenError, InvalidObjectError) as error:
            raise SandboxSetupError(f"sandboxes cannot be made in this cluster: {error}") from error
        except AlreadyExistsError as error:
            raise SandboxStartError(f"sandbox {spec.sandbox_id} runs already, give each its own id: {error}") from error
        except (SandboxStartError, SandboxSetupError):
            raise
        except AgenticError as error:
            if isinstance(error, NotFoundError) and UNSERVED.search(str(error)):
                raise SandboxSetupError(f"sandboxes cannot be made in this cluster: {error}; {ASK}") from error
            raise SandboxStartError(f"sandbox {spec.sandbox_id} was not started: {error}") from error
        finally:
            if not is_taken:
                await asyncio.shield(self._give_back(name, order))

    async def _require_closed_in(self, owner: Owner, spec: SandboxSpec) -> None:
        """A lease that was made anew may lack its network policy, for reasons that pass: it could be made before."""
        try:
            await owner.close_in()
        except AgenticError as error:
            message = f"sandbox {spec.sandbox_id} has no network policy to start under: {error}"
            raise SandboxStartError(message) from error

    def _resources(self, spec: SandboxSpec) -> Resources:
        settings = self.settings
        is_read_only = settings.read_only_root if spec.read_only_root is None else spec.read_only_root
        writable = spec.writable_paths if is_read_only else ()
        return Resources(spec.memory_mb or settings.memory_mb, spec.cpus or settings.cpus, is_read_only, writable)

    async def _take(self, api: KubeApi, source: Source, order: Order, spec: SandboxSpec) -> Sandbox:
        async with self._gate.starting() as start:
            paced = replace(order, on_stall=start.leave, on_landed=start.land, avoid=self._gate.full)
            await self._require_closed_in(order.owner, spec)
            taken = await source.take(paced)
        channel = await self._channel(api, order, taken)
        sandbox = RemoteSandbox(
            spec,
            order.name,
            taken.pod,
            settings=self.settings,
            channel=channel,
            transfers=self._transfers,
            pods=order.owner.pods,
            give_back=lambda: self._give_back(order.name, order),
        )
        async with contextlib.AsyncExitStack() as unless_prepared:
            unless_prepared.push_async_callback(channel.close)
            await sandbox.prepare()
            unless_prepared.pop_all()
        self._in_use[order.name] = InUse(order, taken, sandbox)
        return sandbox

    async def _channel(self, api: KubeApi, order: Order, taken: Taken) -> SandboxExec:
        through = PodExec(api, PodTarget(taken.pod, CONTAINER))
        if self.settings.exec_server_image is None:
            return through
        try:
            address = address_of(order.owner.pods.objects.get(taken.pod, {}))
            return await self._servers.connect(order.name, address, through, port=self.settings.exec_server_port)
        finally:
            await through.close()

    async def _give_back(self, name: str, order: Order | None) -> None:
        """May be repeated. What the API server does not take now is tried again, and said."""
        self._in_use.pop(name, None)
        self._names.discard(name)
        if order is None or self._source is None:
            return
        try:
            await self._source.give_back(order)
        except AgenticError as error:
            self._owed[name] = Owed(order)
            log.warning("sandbox %s was not given back, which is tried again: %s", name, error)

    async def _repay(self, name: str) -> None:
        """Give back what could not be given back before."""
        owed = self._owed.get(name)
        if owed is None or self._source is None:
            return
        async with owed.lock:
            if self._owed.get(name) is owed:
                await self._source.give_back(owed.order)
                del self._owed[name]

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(min(self.settings.lease_seconds / LOOKS_PER_LEASE, self.settings.renew_seconds))
            await self.renew_due()
            await each((f"sandbox {name} is not given back yet", self._repay(name)) for name in list(self._owed))

    async def renew_due(self) -> None:
        """Renew the sandboxes' own leases, those of which half is gone."""
        now = time.time()
        for name, used in list(self._in_use.items()):
            if self._source is None or not used.taken.lease.is_due(now):
                continue
            lease = used.taken.lease.renewed(now)
            try:
                await self._source.renew(used.order, used.taken, lease)
            except AgenticError as error:
                log.warning("the lease of sandbox %s was not renewed, which is tried again: %s", name, error)
                continue
            used.taken = Taken(used.taken.pod, lease)

    async def expect(self, run_id: str, images: Iterable[SandboxImage]) -> None:
        """See `PullsAhead.expect`."""
        if self.settings.prefetch.images == 0:
            return
        names = await asyncio.to_thread(lambda: [one.name for one in distinct_references(images)])
        try:
            api, _ = await self._connected()
            owner = await self._owner_of(api, run_id)
        except AgenticError as error:
            log.warning("no images are pulled ahead for run %s: %s", run_id, error)
            return
        self.prefetches.setdefault(run_id, Prefetch(api, self.settings, owner)).want(names)

    async def sweep(self, run_id: str, *, is_over: bool = False) -> int:
        """See `SandboxProvider.sweep`. `is_over`: nobody works on this run any more, whatever its leases say."""
        api, source = await self._connected()
        return await sweep_run(api, self.settings, source.kinds, run_id, is_over=is_over)

    async def close(self) -> None:
        if self._looking_after is not None:
            self._looking_after.cancel()
        self._is_closing = True
        await self._end_starts()
        sandboxes = [used.sandbox for used in self._in_use.values()]
        left = "something is left to its lease"
        await each((left, sandbox.release()) for sandbox in sandboxes)
        await each((left, prefetch.close()) for prefetch in self.prefetches.values())
        self.prefetches.clear()
        await each([(left, self._source.close())] if self._source else [])
        await each((left, owner.close()) for owner in self._owners.values())
        self._owners.clear()
        self._transfers.close()
        await self._servers.close()
        if self._api is not None:
            await self._api.close()
            self._api = self._source = None
        self._owed.clear()
        self._is_closing = False

    async def _end_starts(self) -> None:
        """What they have made so far is given back by themselves."""
        for acquiring in list(self._acquiring):
            acquiring.cancel()
        await asyncio.gather(*self._acquiring, return_exceptions=True)


def distinct_references(images: Iterable[SandboxImage]) -> Iterator[ImageReference]:
    """Each image of a registry once."""
    seen: set[ImageReference] = set()
    for image in images:
        if isinstance(image, ImageReference) and image not in seen:
            seen.add(image)
            yield image


def require_takeable(spec: SandboxSpec) -> None:
    """Refuse what only a sandbox on this machine can have."""
    require_safe(spec.run_id, spec.sandbox_id)
    if spec.writable_layer is not None:
        raise SandboxSetupError("pods cannot write into a layer: build images with sandbox.provider=bubblewrap")
    if spec.folders:
        raise SandboxSetupError(
            f"pods show no folders of this machine: put {', '.join(spec.folders.values())} into their image"
        )
    if spec.sockets:
        raise SandboxSetupError(
            "pods cannot bind a socket of this machine: choose an agent that runs outside such as shell, or let the "
            "agent reach the proxy's port by sandbox.proxy_port"
        )
