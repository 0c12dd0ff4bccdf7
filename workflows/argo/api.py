"""What the command line asks of Argo, in one namespace: through the Workflow objects or through an Argo server.

`kube.KubeWorkflows` and `server.ServerWorkflows` are the two; one suite of tests runs against both. Errors are those of
`agentic.cluster.errors`.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from agentic.cluster.resources import JsonObject
from agentic.errors import PermanentError

ENDED = frozenset(["Succeeded", "Failed", "Error"])
"""Phases of a Workflow that are final until somebody retries it."""


class GoneError(PermanentError):
    """The Workflow was deleted while it was followed."""


class Workflows(Protocol):
    """Argo, seen by one account."""

    async def create(self, document: JsonObject) -> JsonObject:
        """Raises AlreadyExistsError."""
        ...

    async def get(self, name: str) -> JsonObject:
        """Raises NotFoundError."""
        ...

    async def list(self, labels: str) -> list[JsonObject]:
        """Those that the selector picks, the newest last."""
        ...

    def follow(self, name: str) -> AsyncIterator[JsonObject]:
        """The object as it is now, then again after each change; ends with the Workflow. Outlives outages. Raises
        NotFoundError when there is none, GoneError when it is deleted meanwhile."""
        ...

    async def retry(self, name: str) -> None:
        """Run the failed steps of a finished one again. Raises CommandError or InvalidObjectError if it has none."""
        ...

    async def stop(self, name: str) -> None:
        """End its steps; its exit handler still runs. Nothing happens to one that has ended."""
        ...

    async def delete(self, name: str) -> bool:
        """Whether there was one. Its pods go with it."""
        ...

    def log(self, name: str, pod: str, *, follow: bool) -> AsyncIterator[bytes]:
        """What a step's pod printed. Raises NotFoundError once the pod is gone."""
        ...
