"""kubernetes-sigs/agent-sandbox, v1beta1: a SandboxTemplate and a SandboxWarmPool for each image, a SandboxClaim for
each sandbox.

A claim names its pool; the controller binds a warm Sandbox to it, or makes one, and becomes visible as the Sandbox's
controlling owner, which is checked before the Sandbox is used. The claim ends at its shutdownTime and takes the Sandbox
with it, and so does deleting it. No image is changed in place, and no environment is given with the claim, since either
would make a cold start of every claim.
"""

import time

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import NotFoundError, WaitTimeoutError
from agentic.cluster.labels import ROLE_LABEL, ROLE_SANDBOX
from agentic.cluster.resources import JsonObject, Resource, name_of
from agentic.cluster.watching import Watcher
from agentic.sandbox.errors import SandboxStartError
from agentic.sandbox.kube.claims import ClaimState, ClaimVerdict, is_controlled_by, is_pool_missing, judge_agent_claim
from agentic.sandbox.kube.ending import to_its_end
from agentic.sandbox.kube.kruise import image_name
from agentic.sandbox.kube.leases import Lease, rfc3339, take_lease
from agentic.sandbox.kube.manifests import owned_by, run_labels, sandbox_pod_spec
from agentic.sandbox.kube.mutations import require_isolated
from agentic.sandbox.kube.names import SANDBOX_LABEL, selector
from agentic.sandbox.kube.pools import Pool, PoolKey, Pools
from agentic.sandbox.kube.source import Made, Order, Taken
from agentic.sandbox.kube.starting import PodStart
from agentic.sandbox.settings import AgentSandbox

POD_NAME_ANNOTATION = "agents.x-k8s.io/pod-name"
"""On a Sandbox whose pod is not called as it is."""


def sandbox_template(settings: AgentSandbox, pool: Pool, kind: Resource) -> JsonObject:
    """What the pool's pods look like. The network policy is ours, as for every provider."""
    labels = run_labels(pool.owner.run_id, pool.owner.name)
    spec = {
        "networkPolicyManagement": "Unmanaged",
        "service": False,
        "podTemplate": {
            "metadata": {"labels": {**labels, ROLE_LABEL: ROLE_SANDBOX}},
            "spec": sandbox_pod_spec(settings, pool.key.image, pool.key.resources),
        },
    }
    head = kind.head(pool.name, labels=labels, ownerReferences=owned_by(pool.owner.lease))
    return {**head, "spec": spec}


def warm_pool(pool: Pool, kind: Resource) -> JsonObject:
    labels = run_labels(pool.owner.run_id, pool.owner.name)
    head = kind.head(pool.name, labels=labels, ownerReferences=owned_by(pool.owner.lease))
    return {**head, "spec": {"replicas": pool.size.replicas, "sandboxTemplateRef": {"name": pool.name}}}


def sandbox_claim(settings: AgentSandbox, order: Order, pool: Pool, kind: Resource, now: float) -> JsonObject:
    """A claim of one sandbox, deleted with its Sandbox when its time is over."""
    labels = run_labels(order.owner.run_id, order.owner.name, **{SANDBOX_LABEL: order.name})
    head = kind.head(order.name, labels=labels, ownerReferences=owned_by(order.owner.lease))
    lifecycle = {"shutdownTime": rfc3339(now + settings.lease_seconds), "shutdownPolicy": "Delete"}
    return {**head, "spec": {"warmPoolRef": {"name": pool.name}, "lifecycle": lifecycle}}


class AgentSandboxSource:
    """Claims sandboxes of SandboxWarmPools."""

    def __init__(self, api: KubeApi, settings: AgentSandbox) -> None:
        version = settings.api_version
        self._sandboxes = Resource("agents.x-k8s.io", version, "sandboxes", "Sandbox")
        group = f"extensions.{self._sandboxes.group}"
        self._claims = Resource(group, version, "sandboxclaims", "SandboxClaim")
        self._warm_pools = Resource(group, version, "sandboxwarmpools", "SandboxWarmPool")
        self._templates = Resource(group, version, "sandboxtemplates", "SandboxTemplate")
        self.kinds: tuple[Resource, ...] = (self._claims, self._warm_pools, self._templates)
        self._api, self._settings = api, settings
        self._pools = Pools(api, settings.pool, self._build_pool)
        self._made = Made(api, self._claims)
        self._used: dict[str, Pool] = {}
        self._watchers: dict[str, Watcher] = {}

    @property
    def pools(self) -> Pools:
        return self._pools

    def _build_pool(self, pool: Pool) -> list[tuple[Resource, JsonObject]]:
        return [
            (self._templates, sandbox_template(self._settings, pool, self._templates)),
            (self._warm_pools, warm_pool(pool, self._warm_pools)),
        ]

    async def take(self, order: Order) -> Taken:
        """See `Source.take`."""
        key = PoolKey(order.owner.name, order.image, order.resources, image_name(order.image))
        pool = await self._pools.enter(order.owner, key)
        is_taken = False
        try:
            now = time.time()
            claim = await to_its_end(self._create(order, pool, now))
            sandbox = await self._await_sandbox(order, claim, pool)
            pod_name = sandbox["metadata"].get("annotations", {}).get(POD_NAME_ANNOTATION) or name_of(sandbox)
            pod = await PodStart(self._api, order, self._settings, pod_name, is_known=False).wait()
            require_isolated(order.name, sandbox_pod_spec(self._settings, order.image, order.resources), pod["spec"])
            is_taken = True
            return Taken(pod_name, take_lease(self._settings.lease_seconds, now))
        finally:
            if is_taken:
                self._pools.settle(pool)
                self._used[order.name] = pool
            else:
                self._pools.leave(pool, was_taken=False)

    async def _create(self, order: Order, pool: Pool, now: float) -> JsonObject:
        claims = await self._watch(order)
        body = sandbox_claim(self._settings, order, pool, self._claims, now)
        claim = await self._made.create(body)
        claims.remember(claim)
        return claim

    async def _watch(self, order: Order) -> Watcher:
        if order.owner.name not in self._watchers:
            self._watchers[order.owner.name] = Watcher(self._api, self._claims, labels=selector(owner=order.owner.name))
        await self._watchers[order.owner.name].start()
        return self._watchers[order.owner.name]

    async def _await_sandbox(self, order: Order, claim: JsonObject, pool: Pool) -> JsonObject:
        last = ClaimVerdict(ClaimState.WAITING)

        def look(body: JsonObject | None) -> ClaimVerdict | None:
            nonlocal last
            last = judge_agent_claim(body)
            if is_pool_missing(body):
                self._pools.doubt(pool)
            return None if last.state is ClaimState.WAITING else last

        claims = await self._watch(order)
        try:
            verdict = await claims.wait_for(order.name, look, timeout_seconds=self._settings.start_timeout_seconds)
        except WaitTimeoutError as error:
            raise SandboxStartError(f"sandbox {order.name} was not claimed in time: {last.reason or error}") from error
        if verdict.state is ClaimState.FAILED:
            raise SandboxStartError(f"sandbox {order.name} was not started: {verdict.reason}")
        try:
            sandbox = await self._api.get(self._sandboxes, verdict.sandbox)
        except NotFoundError as error:
            raise SandboxStartError(f"sandbox {order.name} was not started: its Sandbox is gone: {error}") from error
        if not is_controlled_by(sandbox, claim):
            raise SandboxStartError(
                f"claim {order.name} names Sandbox {verdict.sandbox}, which is not its own: it is not used"
            )
        return sandbox

    async def renew(self, order: Order, taken: Taken, lease: Lease) -> None:
        """See `Source.renew`."""
        patch = {"spec": {"lifecycle": {"shutdownTime": rfc3339(lease.expires)}}}
        await self._api.patch(self._claims, order.name, patch)

    async def give_back(self, order: Order) -> None:
        """See `Source.give_back`. The Sandbox goes with its claim."""
        pool = self._used.pop(order.name, None)
        if pool is not None:
            self._pools.leave(pool, was_taken=True)
        await self._made.delete(order)
        self._made.forget(order.name)

    async def close(self) -> None:
        """See `Source.close`."""
        await self._pools.close()
        for watcher in self._watchers.values():
            await watcher.close()
        self._watchers.clear()
