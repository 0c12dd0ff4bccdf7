"""Images on the nodes before the sandboxes that need them.

A DaemonSet has every node pull a few images at a time, and goes when they are there; what was pulled stays. Each image
is a container of its own, so that one that cannot be pulled holds up no other. Nothing waits for any of this: what is
not there in time is pulled by the sandbox that needs it, as it would be anyway. How it went is one line in the log for
each few, and `told` for whoever watches.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import AlreadyExistsError, WaitTimeoutError
from agentic.cluster.resources import DAEMON_SETS, JsonObject, name_of
from agentic.errors import AgenticError
from agentic.sandbox.kube.ending import each, to_its_end
from agentic.sandbox.kube.manifests import PREFETCH_LABEL, prefetch_set
from agentic.sandbox.kube.owner import Owner
from agentic.sandbox.kube.verdict import why_unpullable
from agentic.sandbox.settings import KubeSandbox

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Between two looks at whether a DaemonSet knows its nodes yet."""


@dataclass(frozen=True, slots=True)
class Pulls:
    """How far the nodes are with some images."""

    nodes: int
    """How many shall have them."""
    pulled: Mapping[str, int] = field(default_factory=dict)
    """On how many nodes each image is."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why an image cannot be pulled, by the first node that says so; it is on others all the same, perhaps."""
    settled: int = 0
    """How often a node has pulled an image, or has said that it cannot."""

    def is_settled(self, images: Sequence[str]) -> bool:
        return self.settled >= self.nodes * len(images)

    def describe(self, images: Sequence[str]) -> str:
        """One line."""
        there = sum(self.pulled.get(image, 0) >= self.nodes for image in images)
        missing = [
            f"{image} ({self.failed.get(image, 'not in time')})"
            for image in images
            if self.pulled.get(image, 0) < self.nodes
        ]
        rest = f"; not there: {', '.join(missing)}" if missing else ""
        return f"{there} of {len(images)} images are on {self.nodes} nodes{rest}"


def judge_pulls(pods: Iterable[JsonObject], nodes: int) -> Pulls:
    """What a DaemonSet's pods say about the images of their containers. Pure."""
    pulled: Counter[str] = Counter()
    failed: dict[str, str] = {}
    refused = 0
    for pod in pods:
        images = {container["name"]: str(container["image"]) for container in pod["spec"]["containers"]}
        for status in pod.get("status", {}).get("containerStatuses", []):
            image = images.get(status["name"], "")
            reason = why_unpullable(status)
            if reason:
                failed.setdefault(image, reason)
                refused += 1
            elif is_pulled(status):
                pulled[image] += 1
    return Pulls(nodes, pulled, failed, pulled.total() + refused)


def is_pulled(status: JsonObject) -> bool:
    """A container that runs, has run, or cannot be started for another reason has its image."""
    state = status.get("state", {})
    waits_for = state.get("waiting", {}).get("reason", "ContainerCreating")
    return "running" in state or "terminated" in state or waits_for not in ("ContainerCreating", "PodInitializing")


class Prefetch:
    """Images of one run, in the order in which they were asked for, so many ahead of those that sandboxes have used."""

    def __init__(self, api: KubeApi, settings: KubeSandbox, owner: Owner) -> None:
        self._api, self._settings, self._owner = api, settings, owner
        self._wanted: list[str] = []
        self._known: set[str] = set()
        self._used: set[str] = set()
        self._ahead: dict[str, int] = {}
        """Images, with how many had been used when each was pulled."""
        self._under_way: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.told: list[str] = []
        """What was said about each few images."""

    def want(self, images: Iterable[str]) -> None:
        """Pull these too, but for those that were asked for or used before."""
        for image in images:
            if image not in self._known:
                self._known.add(image)
                self._wanted.append(image)
        self._go_on()

    def use(self, image: str) -> None:
        """A sandbox needs it now: it is ahead no longer, and another may be. Neither is one that was not used while as
        many others were as may be ahead: whoever was to use it does not come to it, or not soon."""
        self._known.add(image)
        self._used.add(image)
        used, bound = len(self._used), self._settings.prefetch.images
        self._ahead = {one: at for one, at in self._ahead.items() if one != image and used - at < bound}
        if image in self._wanted:
            self._wanted.remove(image)
        self._go_on()

    def _go_on(self) -> None:
        if self._next() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._pull_all(), name=f"prefetch {self._owner.name}")

    def _next(self) -> list[str]:
        """As many as are pulled at once, or none while too many are ahead."""
        bound = self._settings.prefetch.images
        few = self._wanted[: min(self._settings.prefetch.at_once, bound)]
        return few if len(self._ahead) + len(few) <= bound else []

    async def settle(self) -> None:
        """Wait until as much as may be ahead is there, has failed, or took too long."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop pulling. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        left = f"what pulls images for run {self._owner.run_id} is left to its lease"
        await each((left, self._api.delete(DAEMON_SETS, name)) for name in self._under_way)
        self._under_way = []

    async def _pull_all(self) -> None:
        while images := self._next():
            self._wanted = self._wanted[len(images) :]
            self._ahead |= dict.fromkeys(images, len(self._used))
            try:
                line = await self._pull(images)
            except AgenticError as error:
                line = f"images were not pulled ahead, which their sandboxes do themselves: {error}"
            self.told.append(line)
            log.info("run %s: %s", self._owner.run_id, line)

    async def _pull(self, images: Sequence[str]) -> str:
        body = prefetch_set(self._settings, self._owner.run_id, self._owner.name, images, self._owner.lease)
        name = name_of(body)
        self._under_way.append(name)
        with contextlib.suppress(AlreadyExistsError):
            await to_its_end(self._api.create(DAEMON_SETS, body))
        began, last = time.monotonic(), Pulls(0)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.prefetch.seconds):
                    last = Pulls(await self._count_nodes(name))
                    await self._await_pulls(name, images, last.nodes)
            last = self._look(name, last.nodes)
            return f"{last.describe(images)}, after {time.monotonic() - began:.0f} s"
        finally:
            await to_its_end(self._api.delete(DAEMON_SETS, name))
            self._under_way.remove(name)

    async def _count_nodes(self, name: str) -> int:
        """As many as take our pods; its controller says so a moment after it was made."""
        while True:
            status = (await self._api.get(DAEMON_SETS, name)).get("status", {})
            if status.get("observedGeneration"):
                return int(status.get("desiredNumberScheduled", 0))
            await asyncio.sleep(LOOK_SECONDS)

    async def _await_pulls(self, name: str, images: Sequence[str], nodes: int) -> None:
        def look(_: Mapping[str, JsonObject]) -> bool | None:
            return self._look(name, nodes).is_settled(images) or None

        with contextlib.suppress(WaitTimeoutError):
            await self._owner.pods.wait_until(look, timeout_seconds=self._settings.prefetch.seconds)

    def _look(self, name: str, nodes: int) -> Pulls:
        pods = self._owner.pods.objects.values()
        return judge_pulls((pod for pod in pods if pod["metadata"]["labels"].get(PREFETCH_LABEL) == name), nodes)
