"""Plain pods: one for each sandbox, made when it is asked for and deleted when it is given back."""

import asyncio
import random
import time

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import QuotaExceededError
from agentic.cluster.resources import PODS, JsonObject, Resource
from agentic.sandbox.kube.ending import to_its_end
from agentic.sandbox.kube.leases import Lease, take_lease
from agentic.sandbox.kube.manifests import run_labels, sandbox_pod
from agentic.sandbox.kube.mutations import require_isolated
from agentic.sandbox.kube.names import SANDBOX_LABEL
from agentic.sandbox.kube.source import Made, Order, Taken
from agentic.sandbox.kube.starting import PodStart
from agentic.sandbox.settings import PodSandbox

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 10.0
"""Between two looks whether a quota has room."""


class PodSource:
    """Makes pods."""

    kinds: tuple[Resource, ...] = (PODS,)

    def __init__(self, api: KubeApi, settings: PodSandbox) -> None:
        self._api, self._settings = api, settings
        self._made = Made(api, PODS)

    async def take(self, order: Order) -> Taken:
        """See `Source.take`."""
        owner = order.owner
        labels = run_labels(owner.run_id, owner.name, **{SANDBOX_LABEL: order.name})
        body = sandbox_pod(self._settings, order.name, order.image, order.resources, labels, owner.lease, order.avoid)
        pod = await self._create_with_room(order, body)
        require_isolated(order.name, body["spec"], pod["spec"])
        await PodStart(self._api, order, self._settings, order.name).wait()
        return Taken(order.name, take_lease(self._settings.lease_seconds, time.time()))

    async def _create_with_room(self, order: Order, body: JsonObject) -> JsonObject:
        """Others end, and a quota has room again: it is waited for, as a node's room is."""
        until = time.monotonic() + self._settings.start_timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await to_its_end(self._create(order, body))
            except QuotaExceededError:
                if time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _create(self, order: Order, body: JsonObject) -> JsonObject:
        pod = await self._made.create(body)
        order.owner.pods.remember(pod)
        return pod

    async def renew(self, order: Order, taken: Taken, lease: Lease) -> None:
        """A pod's own deadline can only come nearer: it is as long as a trial needs, and ends a sandbox for certain."""

    async def give_back(self, order: Order) -> None:
        """See `Source.give_back`."""
        await self._made.delete(order)
        self._made.forget(order.name)

    async def close(self) -> None:
        """There are no pools."""
