"""A STAND-IN for the controllers of kubernetes-sigs/agent-sandbox, of which no build can be had here.

Written from the CRDs of kubernetes-sigs/agent-sandbox (v1beta1; the commit is in tests/crds/SOURCES.json), its
`docs/api.md`, which has the fields' descriptions, and for reasons and messages its `extensions/controllers`. It plays:
a SandboxWarmPool's refill from its template; a Sandbox's pod and its Ready and Finished conditions; a SandboxClaim that
adopts a Ready warm Sandbox, or makes one, and becomes its controlling owner; the claim's status, which forwards the
Sandbox's conditions; shutdownTime with the policies Delete and Retain; a pool or a template that is not there. What it
leaves out: suspending and resuming, volumes, services, network policies, environment, defaults of a pool for its
claims, updates of a template, recreation of failed pods, the queues and expectations of the real controllers.
"""

import asyncio
import secrets
from collections.abc import Iterable

from control_loop import (
    ControlLoop,
    ObjectKey,
    controller_of,
    controller_reference,
    picked,
    pod_ready,
    seconds_until,
    set_condition,
)

from agentic.cluster.api import KubeApi
from agentic.cluster.resources import PODS, JsonObject, Resource, name_of

WARM_POOL = "agents.x-k8s.io/warm-pool-sandbox"
LAUNCH_TYPE = "agents.x-k8s.io/launch-type"
POD_NAME = "agents.x-k8s.io/pod-name"
ASSIGNED = "agents.x-k8s.io/sandbox-name"


class AgentSandboxController:
    """All of them in one loop. An async context."""

    def __init__(self, api: KubeApi) -> None:
        self.sandboxes = Resource("agents.x-k8s.io", "v1beta1", "sandboxes", "Sandbox")
        group = "extensions.agents.x-k8s.io"
        self.claims = Resource(group, "v1beta1", "sandboxclaims", "SandboxClaim")
        self.pools = Resource(group, "v1beta1", "sandboxwarmpools", "SandboxWarmPool")
        self.templates = Resource(group, "v1beta1", "sandboxtemplates", "SandboxTemplate")
        self.is_claiming = True
        kinds = (self.templates, self.pools, self.sandboxes, self.claims, PODS)
        self.loop = ControlLoop(api, kinds, self._reconcile, self._related)
        self._picked: set[str] = set()
        """Sandboxes that a claim is taking; no two pick the same, and nobody waits for another's requests."""

    async def __aenter__(self) -> "AgentSandboxController":
        await self.loop.__aenter__()
        return self

    async def __aexit__(self, *arguments: object) -> None:
        await self.loop.__aexit__(*arguments)

    def _related(self, kind: Resource, body: JsonObject) -> Iterable[ObjectKey]:
        if kind == PODS:
            owner = controller_of(body, self.sandboxes)
            return [(self.sandboxes.name, owner)] if owner else []
        if kind == self.templates:
            names = [one for one in self.loop.all(self.pools) if template_of(one) == name_of(body)]
            return [(self.pools.name, name_of(one)) for one in names]
        keys = [(kind.name, name_of(body))]
        if kind == self.sandboxes:
            pool, claim = body["metadata"].get("labels", {}).get(WARM_POOL), controller_of(body, self.claims)
            keys += [(self.pools.name, pool)] if pool else []
            keys += [(self.claims.name, claim)] if claim else []
        return keys

    async def _reconcile(self, key: ObjectKey) -> float | None:
        plural, name = key
        if plural == self.pools.name:
            return await self._reconcile_pool(name)
        if plural == self.sandboxes.name:
            return await self._reconcile_sandbox(name)
        return await self._reconcile_claim(name)

    async def _reconcile_pool(self, name: str) -> float | None:
        pool = self.loop.get(self.pools, name)
        template = self.loop.get(self.templates, template_of(pool)) if pool is not None else None
        if pool is None or template is None or pool["metadata"].get("deletionTimestamp"):
            return None
        warm = self._warm(name)
        missing = pool["spec"].get("replicas", 1) - len(warm)
        for sandbox in sorted(warm, key=pod_ready)[: max(0, -missing)]:
            if sandbox in self._warm(name):
                with picked(self._picked, name_of(sandbox)):
                    await self.loop.delete(self.sandboxes, name_of(sandbox))
        owner = [controller_reference(self.pools, pool)]
        labels = {WARM_POOL: name, LAUNCH_TYPE: "warm"}
        await asyncio.gather(*(self._make(template, name, labels, owner) for _ in range(max(0, missing))))
        warm = self._warm(name)
        status = {"replicas": len(warm), "readyReplicas": sum(map(pod_ready, warm)), "selector": f"{WARM_POOL}={name}"}
        if {key: pool.get("status", {}).get(key) for key in status} != status:
            await self.loop.patch(self.pools, name, {"status": status}, "status")
        return None

    def _warm(self, pool: str) -> list[JsonObject]:
        return [
            one
            for one in self.loop.all(self.sandboxes)
            if one["metadata"].get("labels", {}).get(WARM_POOL) == pool
            and name_of(one) not in self._picked
            and not one["metadata"].get("deletionTimestamp")
            and not has_condition(one, "Finished")
        ]

    async def _make(
        self, template: JsonObject, name: str, labels: dict[str, str], owners: list[JsonObject]
    ) -> JsonObject | None:
        pod_template = template["spec"]["podTemplate"]
        head = self.sandboxes.head(f"{name}-{secrets.token_hex(3)}", labels=labels, ownerReferences=owners)
        return await self.loop.create(self.sandboxes, {**head, "spec": {"podTemplate": pod_template}})

    async def _reconcile_sandbox(self, name: str) -> float | None:
        sandbox = self.loop.get(self.sandboxes, name)
        if sandbox is None:
            await self.loop.collect(PODS, name, self.sandboxes)
        if sandbox is None or sandbox["metadata"].get("deletionTimestamp"):
            return None
        pod = self.loop.get(PODS, name)
        if pod is None and not sandbox.get("status", {}).get("conditions"):
            pod = await self._make_pod(sandbox)
        status: JsonObject = dict(sandbox.get("status", {}))
        phase = (pod or {}).get("status", {}).get("phase", "Pending")
        if phase in ("Failed", "Succeeded"):
            set_condition(status, "Finished", "True", f"Pod{phase}", f"Pod {name} is {phase}")
        is_ready = pod is not None and pod_ready(pod) and phase == "Running"
        reason = "DependenciesReady" if is_ready else "DependenciesNotReady"
        message = "Pod is Ready" if is_ready else f"Pod is in phase {phase}" if pod else "Pod does not exist"
        set_condition(status, "Ready", "True" if is_ready else "False", reason, message)
        if pod is not None:
            status["nodeName"] = pod["spec"].get("nodeName", "")
        if status != sandbox.get("status", {}):
            await self.loop.patch(self.sandboxes, name, {"status": status}, "status")
        return None

    async def _make_pod(self, sandbox: JsonObject) -> JsonObject | None:
        template = sandbox["spec"]["podTemplate"]
        head = PODS.head(
            name_of(sandbox),
            labels={**template.get("metadata", {}).get("labels", {}), "agents.x-k8s.io/sandbox-name-hash": "stand-in"},
            ownerReferences=[controller_reference(self.sandboxes, sandbox)],
        )
        pod = await self.loop.create(PODS, {**head, "spec": template["spec"]})
        patch = {"metadata": {"annotations": {POD_NAME: name_of(sandbox)}}}
        await self.loop.patch(self.sandboxes, name_of(sandbox), patch)
        return pod

    async def _reconcile_claim(self, name: str) -> float | None:
        claim = self.loop.get(self.claims, name)
        if claim is None or claim["metadata"].get("deletionTimestamp") or not self.is_claiming:
            return None
        lifecycle = claim["spec"].get("lifecycle", {})
        left = seconds_until(lifecycle.get("shutdownTime"))
        if left is not None and left <= 0:
            await self._expire(claim, lifecycle.get("shutdownPolicy", "Retain"))
            return None
        status: JsonObject = dict(claim.get("status", {}))
        sandbox = self._bound_to(claim)
        if sandbox is None and not status.get("sandbox", {}).get("name"):
            sandbox = await self._bind(claim, status)
        elif sandbox is None:
            set_condition(status, "Ready", "False", "SandboxMissing", "Sandbox does not exist")
        if sandbox is not None:
            status["sandbox"] = {"name": name_of(sandbox)}
            for one in sandbox.get("status", {}).get("conditions", []):
                set_condition(status, one["type"], one["status"], one["reason"], one["message"])
        if status != claim.get("status", {}):
            await self.loop.patch(self.claims, name, {"status": status}, "status")
        pending = 0.3 if sandbox is None else None
        return pending if left is None else min(left, pending or left)

    def _bound_to(self, claim: JsonObject) -> JsonObject | None:
        found = self.loop.all(self.sandboxes)
        return next((one for one in found if controller_of(one, self.claims) == name_of(claim)), None)

    async def _bind(self, claim: JsonObject, status: JsonObject) -> JsonObject | None:
        name = claim["spec"]["warmPoolRef"]["name"]
        pool = self.loop.get(self.pools, name)
        if pool is None:
            set_condition(status, "Ready", "False", "WarmPoolNotFound", f'SandboxWarmPool "{name}" not found')
            return None
        template = self.loop.get(self.templates, template_of(pool))
        if template is None:
            message = f'SandboxTemplate "{template_of(pool)}" not found'
            set_condition(status, "Ready", "False", "TemplateNotFound", message)
            return None
        owner = [controller_reference(self.claims, claim)]
        ready = [one for one in self._warm(name) if pod_ready(one)]
        if not ready:
            return await self._make(template, name_of(claim), {LAUNCH_TYPE: "cold"}, owner)
        sandbox = min(ready, key=name_of)
        with picked(self._picked, name_of(sandbox)):
            assigned = {"metadata": {"annotations": {ASSIGNED: name_of(sandbox)}}}
            await self.loop.patch(self.claims, name_of(claim), assigned)
            patch = {"metadata": {"labels": {WARM_POOL: None, LAUNCH_TYPE: "warm"}, "ownerReferences": owner}}
            taken = await self.loop.patch(self.sandboxes, name_of(sandbox), patch)
        self.loop.add((self.pools.name, name))  # What it was taken from is no longer written on it.
        return taken

    async def _expire(self, claim: JsonObject, policy: str) -> None:
        if policy in ("Delete", "DeleteForeground"):
            await self.loop.delete(self.claims, name_of(claim))
            return
        sandbox = self._bound_to(claim)
        if sandbox is not None:
            await self.loop.delete(self.sandboxes, name_of(sandbox))
        status: JsonObject = dict(claim.get("status", {}))
        set_condition(status, "Ready", "False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated.")
        if status != claim.get("status", {}):
            await self.loop.patch(self.claims, name_of(claim), {"status": status}, "status")


def template_of(pool: JsonObject) -> str:
    return str(pool["spec"]["sandboxTemplateRef"]["name"])


def has_condition(sandbox: JsonObject, kind: str) -> bool:
    conditions = sandbox.get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)
