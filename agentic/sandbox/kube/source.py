"""Where a provider's pods come from: what plain pods, OpenKruise and agent-sandbox do differently, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ApiUnavailableError
from agentic.cluster.resources import JsonObject, Resource, name_of, uid_of
from agentic.errors import AgenticError
from agentic.sandbox.kube.leases import Lease
from agentic.sandbox.kube.manifests import Resources
from agentic.sandbox.kube.names import selector
from agentic.sandbox.kube.owner import Owner


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox that is asked for."""

    owner: Owner
    name: str
    """Of the object that stands for it, unique within the namespace."""
    sandbox_id: str
    image: str
    resources: Resources
    on_stall: Callable[[], None] = lambda: None
    """Called when its image fails to be pulled: it may wait for long, and shall keep nobody from starting."""
    on_landed: Callable[[str], None] = lambda node: None
    """Called with the node that its pod was given to."""
    avoid: tuple[str, ...] = ()
    """Nodes on which enough start already."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A sandbox that runs, and is ours."""

    pod: str
    lease: Lease


class Source(Protocol):
    """Makes or claims pods. Every call may be repeated."""

    kinds: tuple[Resource, ...]
    """What a sweep removes; the first stands for one sandbox each and is counted."""

    async def take(self, order: Order) -> Taken:
        """Return once the sandbox's pod runs. Raises SandboxStartError. Whatever it made on the way, also when it is
        cancelled, `give_back` removes."""
        ...

    async def renew(self, order: Order, taken: Taken, lease: Lease) -> None:
        """Let the sandbox live until the lease's new end, where its own deadline can be moved."""
        ...

    async def give_back(self, order: Order) -> None:
        """Remove what `take` made under this order; nothing that others made."""
        ...

    async def close(self) -> None:
        """Remove pools, and let go of watches."""
        ...


class Made:
    """The objects that orders have made, or have asked for without an answer, so that exactly these are removed."""

    def __init__(self, api: KubeApi, resource: Resource) -> None:
        self._api, self._resource = api, resource
        self._uids: dict[str, str] = {}
        """By name; empty where no answer came."""

    async def create(self, body: JsonObject) -> JsonObject:
        name = name_of(body)
        before = self._uids.get(name)
        self._uids[name] = ""
        try:
            made = await self._api.create(self._resource, body)
        except ApiUnavailableError:
            raise
        except AgenticError:
            self.forget(name)
            if before is not None:
                self._uids[name] = before  # Of an earlier try, which may have more to remove.
            raise
        self._uids[name] = uid_of(made)
        return made

    def knows(self, order: Order) -> bool:
        return order.name in self._uids

    async def delete(self, order: Order) -> None:
        """What this order made. It stays known, for who has more to do."""
        uid = self._uids.get(order.name)
        if uid:
            await self._api.delete(self._resource, order.name, uid=uid)
        elif uid is not None:
            labels = selector(owner=order.owner.name, sandbox=order.name)
            for body in (await self._api.list(self._resource, labels=labels)).items:
                await self._api.delete(self._resource, name_of(body), uid=uid_of(body))

    def forget(self, name: str) -> None:
        self._uids.pop(name, None)
