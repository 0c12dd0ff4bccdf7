"""What the stand-ins for sandbox controllers share: watched objects, a queue without repeats, and retries.

The stand-ins play controllers of which no build can be had here. They talk to any API server through `KubeApi`, so that
the same code runs on the double in memory and on a real one. They are level-triggered: reconciling looks at the present
state of one object, may be repeated, and may fail and come again.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import AlreadyExistsError, NotFoundError, WatchExpiredError
from agentic.cluster.resources import JsonObject, Resource, name_of, version_of
from agentic.errors import AgenticError, TransientError

AGAIN_SECONDS = 0.2
WORKERS = 16

type ObjectKey = tuple[str, str]
"""Plural, with its group where needed, and name."""


class ControlLoop:
    """Watches kinds in one namespace and reconciles what changes."""

    def __init__(
        self,
        api: KubeApi,
        kinds: Iterable[Resource],
        reconcile: Callable[[ObjectKey], Awaitable[float | None]],
        related: Callable[[Resource, JsonObject], Iterable[ObjectKey]],
    ) -> None:
        """`reconcile` returns after how many seconds to look again; `related` names what a change concerns."""
        self._api, self._kinds, self._reconcile, self._related = api, tuple(kinds), reconcile, related
        self.objects: dict[str, dict[str, JsonObject]] = {kind.name: {} for kind in self._kinds}
        self._queue: asyncio.Queue[ObjectKey] = asyncio.Queue()
        self._queued: set[ObjectKey] = set()
        self._busy: set[ObjectKey] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._timers: set[asyncio.TimerHandle] = set()
        self.failures: list[str] = []
        """What went wrong and was tried again."""

    async def __aenter__(self) -> "ControlLoop":
        self._tasks = [asyncio.create_task(self._watch(kind)) for kind in self._kinds]
        self._tasks += [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def get(self, kind: Resource, name: str) -> JsonObject | None:
        return self.objects[kind.name].get(name)

    def all(self, kind: Resource) -> list[JsonObject]:
        return list(self.objects[kind.name].values())

    def put(self, kind: Resource, body: JsonObject) -> JsonObject:
        """What a write returned, so that the next look does not see the world before it."""
        known = self.objects[kind.name].get(name_of(body))
        if known is None or int(version_of(known) or 0) <= int(version_of(body) or 0):
            self.objects[kind.name][name_of(body)] = body
        return body

    def add(self, key: ObjectKey) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def add_later(self, key: ObjectKey, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers = {timer for timer in self._timers if timer.when() > loop.time()}
        self._timers.add(loop.call_later(max(seconds, 0), self.add, key))

    async def _watch(self, kind: Resource) -> None:
        version = ""
        while True:
            try:
                if not version:
                    found = await self._api.list(kind)
                    version = found.resource_version
                    self.objects[kind.name] = {name_of(body): body for body in found.items}
                    for body in found.items:
                        self._notice(kind, body)
                async for event in self._api.watch(kind, resource_version=version):
                    version = version_of(event.body)
                    if event.kind == "DELETED":
                        self.objects[kind.name].pop(name_of(event.body), None)
                    elif event.kind != "BOOKMARK":
                        self.put(kind, event.body)
                    if event.kind != "BOOKMARK":
                        self._notice(kind, event.body)
            except WatchExpiredError:
                version = ""
            except (TransientError, NotFoundError) as error:
                self.failures.append(str(error))
                await asyncio.sleep(AGAIN_SECONDS)

    def _notice(self, kind: Resource, body: JsonObject) -> None:
        for key in self._related(kind, body):
            self.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            if key in self._busy:
                self.add_later(key, 0.01)
                continue
            self._busy.add(key)
            try:
                again = await self._reconcile(key)
                if again is not None:
                    self.add_later(key, again)
            except AgenticError as error:
                self.failures.append(str(error))
                self.add_later(key, AGAIN_SECONDS)
            finally:
                self._busy.discard(key)

    async def create(self, kind: Resource, body: JsonObject) -> JsonObject | None:
        """None when it is there already."""
        with contextlib.suppress(AlreadyExistsError):
            return self.put(kind, await self._api.create(kind, body))
        return None

    async def patch(self, kind: Resource, name: str, patch: JsonObject, subresource: str = "") -> JsonObject | None:
        """None when it is gone."""
        try:
            return self.put(kind, await self._api.patch(kind, name, patch, subresource=subresource))
        except NotFoundError:
            self.objects[kind.name].pop(name, None)
            return None

    async def delete(self, kind: Resource, name: str) -> None:
        await self._api.delete(kind, name)
        self.objects[kind.name].pop(name, None)

    async def collect(self, kind: Resource, name: str, owner: Resource) -> None:
        """Remove an object that was made for an owner which is gone already, as a cluster's collector does."""
        body = self.get(kind, name)
        if body is not None and controller_of(body, owner) == name:
            await self.delete(kind, name)


@contextlib.contextmanager
def picked(names: set[str], name: str) -> Iterator[None]:
    """While it is being taken, it is nobody else's."""
    names.add(name)
    try:
        yield
    finally:
        names.discard(name)


def controller_reference(kind: Resource, owner: JsonObject) -> JsonObject:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name_of(owner),
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(body: JsonObject, kind: Resource) -> str | None:
    """Name of an object's controller of this kind."""
    for reference in body["metadata"].get("ownerReferences") or []:
        if reference.get("controller") and reference["kind"] == kind.kind:
            return str(reference["name"])
    return None


def set_condition(status: JsonObject, kind: str, value: str, reason: str, message: str = "") -> None:
    """As `meta.SetStatusCondition` does: the time changes with the status alone."""
    conditions = [dict(one) for one in status.get("conditions", [])]
    known = next((one for one in conditions if one["type"] == kind), None)
    changed = {"type": kind, "status": value, "reason": reason, "message": message}
    if known is None:
        conditions.append({**changed, "lastTransitionTime": now_text()})
    else:
        moment = known["lastTransitionTime"] if known["status"] == value else now_text()
        known.update({**changed, "lastTransitionTime": moment})
    status["conditions"] = conditions


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_until(text: str | None) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp() - time.time()


def duration_seconds(text: str) -> float:
    """Go's notation, as far as it is used here: `90s`, `1m`, `1h30m`."""
    total, number = 0.0, ""
    for sign in text:
        if sign in "hms":
            total += float(number) * {"h": 3600, "m": 60, "s": 1}[sign]
            number = ""
        else:
            number += sign
    return total


def pod_ready(pod: JsonObject) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
