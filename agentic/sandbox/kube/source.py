"""Where a provider's pods come from: what plain pods, OpenKruise and agent-sandbox do differently, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentic.cluster.resources import JsonObject, Resource
from agentic.sandbox.kube.leases import Lease
from agentic.sandbox.kube.manifests import Resources
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
    """The objects that orders have made, so that exactly these are removed."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}

    def add(self, body: JsonObject) -> JsonObject:
        self._uids[body["metadata"]["name"]] = body["metadata"]["uid"]
        return body

    def uid(self, name: str) -> str | None:
        return self._uids.get(name)

    def forget(self, name: str) -> None:
        self._uids.pop(name, None)
