"""What the rest of the project may ask of a Kubernetes API server.

`agentic.cluster.client.KubeClient` is the real one. Objects are plain JSON; `namespace=None` is the client's own. Every
method may be repeated after an ApiUnavailableError: a create that had been accepted after all is recognised. Errors are
those of `agentic.cluster.errors`, raised only after what may pass was retried.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentic.cluster.channels import ExecChannels
from agentic.cluster.resources import JsonObject, Resource

PatchKind = Literal["merge", "json", "strategic"]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects that a selector picks."""

    items: tuple[JsonObject, ...]
    resource_version: str
    """Where to watch from."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change."""

    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    body: JsonObject


class KubeApi(Protocol):
    """An API server, seen by one account."""

    @property
    def namespace(self) -> str:
        """Where things go when a call names no namespace."""
        ...

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> JsonObject:
        """Raises NotFoundError."""
        ...

    async def list(
        self, resource: Resource, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> ObjectList:
        """All pages."""
        ...

    async def create(
        self, resource: Resource, body: JsonObject, *, namespace: str | None = None, dry_run: bool = False
    ) -> JsonObject:
        """Raises AlreadyExistsError, unless it was this very call that made the object."""
        ...

    async def apply(
        self, resource: Resource, body: JsonObject, *, namespace: str | None = None, dry_run: bool = False
    ) -> JsonObject:
        """Server-side apply under our field manager, taking over fields that others hold; unknown ones are refused."""
        ...

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        kind: PatchKind = "merge",
        subresource: str = "",
    ) -> JsonObject:
        """`patch` has to be safe to repeat; put a resourceVersion or a JSON `test` into it where it is not."""
        ...

    async def patch_scale(
        self, resource: Resource, name: str, replicas: int, *, namespace: str | None = None
    ) -> JsonObject:
        """Set the replicas through the scale subresource."""
        ...

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_period_seconds: int | None = None,
    ) -> bool:
        """Whether there was anything to delete. With `uid` or `resource_version`, another object of that name is left
        alone and counts as nothing (`uid`) or raises ConflictError (`resource_version`)."""
        ...

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        """Changes since that version, until the server ends the stream. Raises WatchExpiredError when it is too old,
        and ApiUnavailableError when the stream breaks or is silent too long. `Watcher` reconnects; this does not."""
        ...

    def exec(
        self,
        pod: str,
        command: Sequence[str],
        *,
        namespace: str | None = None,
        container: str = "",
        has_stdin: bool = False,
        closes_stdin: bool = False,
    ) -> AbstractAsyncContextManager[ExecChannels]:
        """Start a program in a container. Entering is retried, so the program may be started more than once when an
        answer gets lost; only one of them is spoken to. What may not run twice waits for a word on its input.
        `closes_stdin`: its input shall end before it does, if the server can have that."""
        ...

    async def close(self) -> None:
        """May be repeated."""
        ...
