"""Workflows by kubectl access alone: the objects are written and watched, as the argo command does without a server."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from agentic.cluster.client import KubeClient
from agentic.cluster.errors import ConflictError, NotFoundError, WaitTimeoutError
from agentic.cluster.resources import PODS, WORKFLOWS, JsonObject, name_of, uid_of, version_of
from agentic.cluster.watching import Watcher
from agentic.errors import TransientError
from workflows.argo.api import ENDED, GoneError
from workflows.argo.nodes import is_over, phase_of
from workflows.argo.retrying import Restart, restart

ENDING_SECONDS = 60.0
"""How long pods of failed attempts may take to vanish before the new ones are asked for; Argo holds them until it has
read how they ended."""

LOOK_SECONDS = 60.0
"""Without a change for so long, the object is asked for: a watch that is refused goes on trying, and says nothing."""

CLAIM = "agentic-rl/retried"
"""Annotation: when somebody last began to retry the Workflow."""

WRITES = 5
"""How often a change is worked out again because somebody changed the object meanwhile."""


class KubeWorkflows:
    """The real objects."""

    def __init__(self, client: KubeClient, look_seconds: float = LOOK_SECONDS) -> None:
        self._client = client
        self._look_seconds = look_seconds

    async def create(self, document: JsonObject) -> JsonObject:
        return await self._client.create(WORKFLOWS, document)

    async def get(self, name: str) -> JsonObject:
        return await self._client.get(WORKFLOWS, name)

    async def list(self, labels: str) -> list[JsonObject]:
        found = await self._client.list(WORKFLOWS, labels=labels)
        return sorted(found.items, key=lambda workflow: str(workflow["metadata"].get("creationTimestamp", "")))

    async def follow(self, name: str) -> AsyncIterator[JsonObject]:
        seen = await self.get(name)
        yield seen
        async with Watcher(self._client, WORKFLOWS, fields=f"metadata.name={name}") as watcher:
            while not is_over(seen):
                found = await self._next(watcher, seen)
                if found is not None:
                    seen = found
                    yield seen

    async def _next(self, watcher: Watcher, seen: JsonObject) -> JsonObject | None:
        """The next change, or nothing for now."""

        def changed(found: JsonObject | None) -> JsonObject | None:
            if found is None or uid_of(found) != uid_of(seen):
                raise GoneError(f"workflow {name_of(seen)} was deleted")
            return found if version_of(found) != version_of(seen) else None

        with contextlib.suppress(WaitTimeoutError):
            return await watcher.wait_for(name_of(seen), changed, timeout_seconds=self._look_seconds)
        with contextlib.suppress(TransientError, NotFoundError):  # a deletion, the watch tells
            await self.get(name_of(seen))
        return None

    async def retry(self, name: str) -> None:
        for left in reversed(range(WRITES)):
            found = await self.get(name)
            restart(found, datetime.now(UTC))
            try:
                await self._retry(found)
                return
            except ConflictError:
                if not left:
                    raise

    async def _retry(self, found: JsonObject) -> None:
        """The version is claimed before pods go, so that of several retries only the last to claim goes through: one
        that is too late must not remove the pods of new attempts, which are called as the old ones were."""
        name, now = name_of(found), datetime.now(UTC)
        claimed = await self._client.patch(WORKFLOWS, name, _claiming(found, now), kind="json")
        changed = restart(claimed, now)
        await self._delete_pods(changed)
        await self._client.patch(WORKFLOWS, name, _replacing(claimed, changed.workflow), kind="json")

    async def _delete_pods(self, changed: Restart) -> None:
        """A controller that finds a pod of the name it wants takes it for its own, even one that is ending."""
        workflow = f"workflows.argoproj.io/workflow={name_of(changed.workflow)}"
        async with Watcher(self._client, PODS, labels=workflow) as pods:
            for name in changed.pods:
                await self._client.delete(PODS, name)
            wanted = set(changed.pods)
            await pods.wait_until(lambda there: None if wanted & there.keys() else True, timeout_seconds=ENDING_SECONDS)

    async def stop(self, name: str) -> None:
        if phase_of(await self.get(name)) not in ENDED:
            await self._client.patch(WORKFLOWS, name, {"spec": {"shutdown": "Stop"}})

    async def delete(self, name: str) -> bool:
        return await self._client.delete(WORKFLOWS, name)

    async def log(self, name: str, pod: str, *, follow: bool) -> AsyncIterator[bytes]:
        async for piece in self._client.log(pod, container="main", follow=follow):
            yield piece


def _claiming(found: JsonObject, now: datetime) -> list[JsonObject]:
    annotations = {**(found["metadata"].get("annotations") or {}), CLAIM: now.isoformat()}
    return [_same_version(found), {"op": "add", "path": "/metadata/annotations", "value": annotations}]


def _replacing(before: JsonObject, after: JsonObject) -> list[JsonObject]:
    parts = [part for part in ("spec", "status") if before.get(part) != after.get(part)]
    labels = {"op": "replace", "path": "/metadata/labels", "value": after["metadata"].get("labels") or {}}
    changes = [{"op": "replace", "path": f"/{part}", "value": after[part]} for part in parts]
    return [_same_version(before), *([labels] if before["metadata"].get("labels") else []), *changes]


def _same_version(before: JsonObject) -> JsonObject:
    """Makes a patch hold only for the very version that was read: another one is a conflict, where a `test` that fails
    would be refused as invalid."""
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version_of(before)}
