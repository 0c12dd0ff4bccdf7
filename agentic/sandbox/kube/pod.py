"""Plain pods: one for each sandbox, made when it is asked for and deleted when it is given back."""

import time

from agentic.cluster.api import KubeApi
from agentic.cluster.resources import PODS, JsonObject, Resource
from agentic.sandbox.kube.leases import Lease, take_lease
from agentic.sandbox.kube.manifests import run_labels, sandbox_pod
from agentic.sandbox.kube.mutations import require_isolated
from agentic.sandbox.kube.names import SANDBOX_LABEL
from agentic.sandbox.kube.source import Made, Order, Taken, to_its_end
from agentic.sandbox.kube.starting import PodStart
from agentic.sandbox.settings import PodSandbox


class PodSource:
    """Makes pods."""

    kinds: tuple[Resource, ...] = (PODS,)

    def __init__(self, api: KubeApi, settings: PodSandbox) -> None:
        self._api, self._settings = api, settings
        self._made = Made()

    async def take(self, order: Order) -> Taken:
        """See `Source.take`."""
        owner = order.owner
        labels = run_labels(owner.run_id, owner.name, **{SANDBOX_LABEL: order.name})
        body = sandbox_pod(self._settings, order.name, order.image, order.resources, labels, owner.lease)
        pod = await to_its_end(self._create(order, body))
        require_isolated(order.name, body["spec"], pod["spec"])
        await PodStart(self._api, owner.pods, self._settings, order.name).wait()
        return Taken(order.name, take_lease(self._settings.lease_seconds, time.time()))

    async def _create(self, order: Order, body: JsonObject) -> JsonObject:
        pod = self._made.add(await self._api.create(PODS, body))
        order.owner.pods.remember(pod)
        return pod

    async def renew(self, order: Order, taken: Taken, lease: Lease) -> None:
        """A pod's own deadline can only come nearer: it is as long as a trial needs, and ends a sandbox for certain."""

    async def give_back(self, order: Order) -> None:
        """See `Source.give_back`."""
        uid = self._made.uid(order.name)
        if uid is not None:
            await self._api.delete(PODS, order.name, uid=uid)
            self._made.forget(order.name)

    async def close(self) -> None:
        """There are no pools."""
