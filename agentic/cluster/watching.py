"""A live copy of the objects that a selector picks, and waiting on it.

    async with Watcher(api, PODS, labels="agentic-rl/run=r1") as pods:
        pods.remember(await api.create(PODS, body))
        ready = await pods.wait_for("pod-1", lambda pod: pod if pod and is_ready(pod) else None, timeout_seconds=60)

One list and one watch serve any number of waiters; a change wakes only those who wait for that object. When the stream
ends, breaks, falls silent or has expired (410), the watcher goes on from its place or lists again, with growing pauses,
and waiters never notice. A refusal (Forbidden, say) of the first list is raised to every waiter, now and later; once a
list was given, a refusal is trouble that passes, since servers that just restarted and authorization webhooks that are
down refuse what is allowed.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType

from agentic.cluster.api import KubeApi, WatchEvent
from agentic.cluster.errors import ApiUnavailableError, WaitTimeoutError, WatchExpiredError
from agentic.cluster.resources import JsonObject, Resource, name_of, uid_of, version_of
from agentic.errors import AgenticError, PermanentError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
REMEMBERED_DELETIONS = 20_000
"""Enough that an answer to a create never outlives the memory of its object's deletion."""

type Check[T] = Callable[[JsonObject | None], T | None]
"""Given an object, or None when there is none of that name (yet, or any more): what was waited for, or None. It may
raise what makes waiting pointless."""


class Watcher:
    """The objects by name, as of a moment ago."""

    def __init__(
        self, api: KubeApi, resource: Resource, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._objects: dict[str, JsonObject] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._anyone: set[asyncio.Event] = set()
        self._listed = asyncio.Event()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self.trouble: AgenticError | None = None
        """Why the copy may lag at the moment; None while the stream is up."""

    @property
    def objects(self) -> Mapping[str, JsonObject]:
        return MappingProxyType(self._objects)

    async def __aenter__(self) -> "Watcher":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Returns when the first list is in. Raises its refusal."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"watch {self._resource.plural}")
            self._task.add_done_callback(self._ended)
        await self._listed.wait()
        self._raise_failure()

    async def close(self) -> None:
        """May be repeated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def wait_for[T](self, name: str, check: Check[T], *, timeout_seconds: float) -> T:
        """Wait until `check` of that object is not None. Raises WaitTimeoutError."""
        event = asyncio.Event()
        self._waiters.setdefault(name, set()).add(event)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._wait(event, lambda: check(self._objects.get(name)))
        except TimeoutError:
            raise WaitTimeoutError(self._too_late(name, timeout_seconds)) from None
        finally:
            self._waiters[name].discard(event)
            if not self._waiters[name]:
                del self._waiters[name]

    async def wait_until[T](
        self, check: Callable[[Mapping[str, JsonObject]], T | None], *, timeout_seconds: float
    ) -> T:
        """Wait until `check` of all objects is not None; it is tried at every change, so keep it cheap."""
        event = asyncio.Event()
        self._anyone.add(event)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._wait(event, lambda: check(self.objects))
        except TimeoutError:
            raise WaitTimeoutError(self._too_late("", timeout_seconds)) from None
        finally:
            self._anyone.discard(event)

    async def _wait[T](self, event: asyncio.Event, check: Callable[[], T | None]) -> T:
        while True:
            self._raise_failure()
            event.clear()
            found = check()
            if found is not None:
                return found
            await event.wait()

    def _too_late(self, name: str, seconds: float) -> str:
        what = f"{self._resource.plural} {name}".strip()
        trouble = f"; the watch is in trouble: {self.trouble}" if self.trouble else ""
        return f"{what}: not as awaited within {seconds:.0f} s{trouble}"

    def remember(self, body: JsonObject) -> None:
        """Take in an object that a create or patch returned, so that a missing one means a deleted one from then on."""
        if uid_of(body) not in self._deleted:
            self._put(body)

    def _put(self, body: JsonObject) -> None:
        known = self._objects.get(name_of(body))
        if known is not None and is_newer(version_of(known), version_of(body)):
            return
        self._objects[name_of(body)] = body
        self._wake(name_of(body))

    def _drop(self, body: JsonObject) -> None:
        self._deleted[uid_of(body)] = None
        if len(self._deleted) > REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)
        known = self._objects.get(name_of(body))
        if known is not None and uid_of(known) == uid_of(body):
            del self._objects[name_of(body)]
            self._wake(name_of(body))

    def _wake(self, name: str) -> None:
        for event in (*self._waiters.get(name, ()), *self._anyone):
            event.set()

    async def _run(self) -> None:
        pause, version = FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                if not version:
                    version = await self._relist()
                async for event in self._watch(version):
                    version, pause, self.trouble = self._take(event), FIRST_PAUSE_SECONDS, None
            except WatchExpiredError as trouble:
                version, self.trouble = "", trouble
            except AgenticError as trouble:
                if isinstance(trouble, PermanentError) and not self._listed.is_set():
                    raise
                self.trouble = trouble
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _watch(self, version: str) -> AsyncIterator[WatchEvent]:
        return self._api.watch(
            self._resource,
            resource_version=version,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
        )

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Nobody waits for what nobody watches any more."""
        closed = ApiUnavailableError(f"the watch of {self._resource.plural} was closed")
        self._failure = closed if task.cancelled() else task.exception()
        self._listed.set()
        for name in list(self._waiters):
            self._wake(name)
        for event in self._anyone:
            event.set()

    async def _relist(self) -> str:
        found = await self._api.list(
            self._resource, namespace=self._namespace, labels=self._labels, fields=self._fields
        )
        present = {uid_of(body) for body in found.items}
        # What was remembered while the list was on its way is not in it, and not deleted either.
        gone = [
            body
            for body in self._objects.values()
            if uid_of(body) not in present and not is_newer(version_of(body), found.resource_version)
        ]
        for body in gone:
            self._drop(body)
        for body in found.items:
            self._put(body)
        self.trouble = None
        self._listed.set()
        return found.resource_version

    def _take(self, event: WatchEvent) -> str:
        """Apply a change; returns the place in the stream after it."""
        if event.kind == "DELETED":
            self._drop(event.body)
        elif event.kind != "BOOKMARK":
            self._put(event.body)
        return version_of(event.body)


def is_newer(one: str, other: str) -> bool:
    """Resource versions are counters; what is no counter is taken as it comes."""
    return one.isdigit() and other.isdigit() and int(one) > int(other)
