"""A STAND-IN for the controllers of OpenKruise Agents, of which no build can be had here.

Written from the CRDs of openkruise/agents (agents.kruise.io/v1alpha1; the commit is in tests/crds/SOURCES.json, with
the fields' descriptions in its `api/v1alpha1`), its `docs/proposals` on claims, updates in place and creation on
demand, and for reasons and messages its `pkg/controller/{sandbox,sandboxset,sandboxclaim}`. It plays: a SandboxSet's
refill up to `replicas` unused sandboxes; a Sandbox's pod of the same name, phase and Ready condition; a SandboxClaim
that takes a Ready sandbox of its pool, or makes one when there is none, writes its labels, detaches it from the pool,
lets it take another image in place, waits until it is Ready, and completes whether it got one or not; shutdownTime; the
end of a claim's time, and of a completed claim's. What it leaves out: `waitReadyTimeout` (a claim's own time counts),
claims of several sandboxes, pausing, checkpoints, upgrades, volumes, runtimes, updates of a pool's template, the speed
limits and expectations of the real controllers.

`kubelet` also plays what the node does with a changed image, for API servers whose pods no kubelet runs.
"""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

from control_loop import (
    ControlLoop,
    ObjectKey,
    controller_of,
    controller_reference,
    duration_seconds,
    now_text,
    picked,
    pod_ready,
    seconds_until,
    set_condition,
)

from agentic.cluster.api import KubeApi
from agentic.cluster.resources import PODS, JsonObject, Resource, name_of

PREFIX = "agents.kruise.io/"
POOL, TEMPLATE, CLAIMED, CLAIM_NAME = (
    f"{PREFIX}{name}" for name in ("sandbox-pool", "sandbox-template", "sandbox-claimed", "claim-name")
)
UNUSABLE = ("Failed", "Succeeded", "Terminating")
UNSTARTABLE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError", "RunContainerError")


class KruiseController:
    """All of them in one loop. An async context."""

    def __init__(self, api: KubeApi, *, group: str = "agents.kruise.io", kubelet: bool = True) -> None:
        self.sandboxes = Resource(group, "v1alpha1", "sandboxes", "Sandbox")
        self.claims = Resource(group, "v1alpha1", "sandboxclaims", "SandboxClaim")
        self.sets = Resource(group, "v1alpha1", "sandboxsets", "SandboxSet")
        self.kubelet = kubelet
        self.is_claiming = True
        """Whether claims are answered at all."""
        self.sees_sets = True
        """Whether its copy of the SandboxSets is as new as that of the claims."""
        self.unpullable: set[str] = set()
        """Images that `kubelet` cannot pull."""
        self.loop = ControlLoop(api, (self.sets, self.sandboxes, self.claims, PODS), self._reconcile, self._related)
        self._picked: set[str] = set()
        """Sandboxes that a claim is taking; no two pick the same, and nobody waits for another's requests."""
        self._replaced: dict[str, str] = {}
        """Container of each pod that was given another image. Its node may call that by another name."""

    async def __aenter__(self) -> "KruiseController":
        await self.loop.__aenter__()
        return self

    async def __aexit__(self, *arguments: object) -> None:
        await self.loop.__aexit__(*arguments)

    def _related(self, kind: Resource, body: JsonObject) -> Iterable[ObjectKey]:
        labels = body["metadata"].get("labels", {})
        if kind == PODS:
            owner = controller_of(body, self.sandboxes)
            return [(self.sandboxes.name, owner)] if owner else []
        if kind == self.sandboxes:
            keys = [(kind.name, name_of(body))]
            keys += [(self.sets.name, labels[POOL])] if POOL in labels else []
            return keys + ([(self.claims.name, labels[CLAIM_NAME])] if CLAIM_NAME in labels else [])
        return [(kind.name, name_of(body))]

    async def _reconcile(self, key: ObjectKey) -> float | None:
        plural, name = key
        if plural == self.sets.name:
            return await self._reconcile_set(name)
        if plural == self.sandboxes.name:
            return await self._reconcile_sandbox(name)
        return await self._reconcile_claim(name)

    # SandboxSet

    async def _reconcile_set(self, name: str) -> float | None:
        pool = self.loop.get(self.sets, name)
        if pool is None or pool["metadata"].get("deletionTimestamp"):
            return None
        unused = self._unused(name)
        missing = pool["spec"]["replicas"] - len(unused)
        surplus = sorted(unused, key=self._is_ready)[: max(0, -missing)]
        for sandbox in surplus:
            if sandbox in self._unused(name):
                with picked(self._picked, name_of(sandbox)):
                    await self.loop.delete(self.sandboxes, name_of(sandbox))
        await asyncio.gather(*(self._make(pool) for _ in range(max(0, missing))))
        unused = self._unused(name)
        available = sum(self._is_ready(one) for one in unused)
        status = {"replicas": len(unused), "availableReplicas": available, "selector": f"{POOL}={name}"}
        if {key: pool.get("status", {}).get(key) for key in status} != status:
            await self.loop.patch(self.sets, name, {"status": status}, "status")
        return None

    def _unused(self, pool: str) -> list[JsonObject]:
        return [
            one
            for one in self.loop.all(self.sandboxes)
            if one["metadata"].get("labels", {}).get(POOL) == pool
            and one["metadata"]["labels"].get(CLAIMED) == "false"
            and name_of(one) not in self._picked
            and not one["metadata"].get("deletionTimestamp")
            and one.get("status", {}).get("phase") not in UNUSABLE
        ]

    def _is_ready(self, sandbox: JsonObject) -> bool:
        return pod_ready(sandbox)

    async def _make(self, pool: JsonObject, **labels: str) -> JsonObject | None:
        """A Sandbox of a pool; it is the pool's own unless it is claimed from birth."""
        name = f"{name_of(pool)}-{secrets.token_hex(3)}"
        marks = {POOL: name_of(pool), TEMPLATE: name_of(pool), CLAIMED: "false", **labels}
        owners = [] if CLAIM_NAME in labels else [controller_reference(self.sets, pool)]
        template = pool["spec"]["template"]
        head = self.sandboxes.head(
            name, labels={**template["metadata"].get("labels", {}), **marks}, ownerReferences=owners
        )
        return await self.loop.create(self.sandboxes, {**head, "spec": {"template": template}})

    # Sandbox

    async def _reconcile_sandbox(self, name: str) -> float | None:
        sandbox = self.loop.get(self.sandboxes, name)
        if sandbox is None:
            await self.loop.collect(PODS, name, self.sandboxes)
        if sandbox is None or sandbox["metadata"].get("deletionTimestamp"):
            return None
        left = seconds_until(sandbox["spec"].get("shutdownTime"))
        if left is not None and left <= 0:
            await self.loop.delete(self.sandboxes, name)
            return None
        pod = self.loop.get(PODS, name)
        if pod is None:
            if sandbox.get("status", {}).get("phase") in ("Running", *UNUSABLE):
                await self._write_status(sandbox, {"phase": "Failed", "message": "pod not found"})
                return left
            pod = await self._make_pod(sandbox)
        if pod is not None:
            await self._update_in_place(sandbox, pod)
            await self._write_status(sandbox, self._status_of(sandbox, self.loop.get(PODS, name) or pod))
        return left

    async def _make_pod(self, sandbox: JsonObject) -> JsonObject | None:
        template = sandbox["spec"]["template"]
        head = PODS.head(
            name_of(sandbox),
            labels={**template["metadata"].get("labels", {}), f"{PREFIX}sandbox-name": name_of(sandbox)[:63]},
            ownerReferences=[controller_reference(self.sandboxes, sandbox)],
        )
        return await self.loop.create(PODS, {**head, "spec": template["spec"]})

    async def _update_in_place(self, sandbox: JsonObject, pod: JsonObject) -> None:
        """Labels and image of the template onto the pod; the kubelet restarts the container."""
        template = sandbox["spec"]["template"]
        wanted, labels = template["spec"]["containers"][0], template["metadata"].get("labels", {})
        patch: list[JsonObject] = []
        if any(pod["metadata"].get("labels", {}).get(key) != value for key, value in labels.items()):
            patch.append({"op": "add", "path": "/metadata/labels", "value": {**pod["metadata"]["labels"], **labels}})
        is_changed = pod["spec"]["containers"][0]["image"] != wanted["image"]
        if is_changed:
            patch.append({"op": "replace", "path": "/spec/containers/0/image", "value": wanted["image"]})
            self._replaced[pod["metadata"]["uid"]] = container_id(pod)
        if patch:
            changed = await self.loop._api.patch(PODS, name_of(pod), patch, kind="json")
            pod = self.loop.put(PODS, changed)
        if is_changed and self.kubelet:
            await self._play_kubelet(pod, wanted["image"])

    async def _play_kubelet(self, pod: JsonObject, image: str) -> None:
        status = dict(pod.get("status", {}))
        container = dict((status.get("containerStatuses") or [{"name": pod["spec"]["containers"][0]["name"]}])[0])
        if image in self.unpullable:
            message = f'Back-off pulling image "{image}"'
            container |= {"ready": False, "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}}}
            set_condition(status, "Ready", "False", "ContainersNotReady", "containers with unready status: [sandbox]")
        else:
            count = int(container.get("restartCount", 0)) + 1
            identity = f"double://{pod['metadata']['uid']}/{count}"
            container |= {"image": image, "ready": True, "restartCount": count, "containerID": identity}
            container["state"] = {"running": {"startedAt": now_text()}}
        status["containerStatuses"] = [container]
        await self.loop.patch(PODS, name_of(pod), {"status": status}, "status")

    def _status_of(self, sandbox: JsonObject, pod: JsonObject) -> JsonObject:
        status: JsonObject = {**sandbox.get("status", {}), "message": ""}
        wanted = sandbox["spec"]["template"]["spec"]["containers"][0]["image"]
        container = (pod.get("status", {}).get("containerStatuses") or [{}])[0]
        waiting = container.get("state", {}).get("waiting", {})
        status["phase"] = pod.get("status", {}).get("phase", "Pending")
        status["observedGeneration"] = sandbox["metadata"].get("generation", 1)
        info = {"nodeName": pod["spec"].get("nodeName", ""), "podIP": pod.get("status", {}).get("podIP", "")}
        status["podInfo"] = {**info, "podUID": pod["metadata"]["uid"]}
        is_updating = pod["spec"]["containers"][0]["image"] != wanted or is_same(pod, self._replaced)
        if waiting.get("reason") in UNSTARTABLE:
            message = f"container {container['name']}: {waiting['reason']}: {waiting.get('message', '')}"
            set_condition(status, "Ready", "False", "StartContainerFailed", message)
        elif is_updating and CLAIM_NAME in sandbox["metadata"].get("labels", {}) and "image" in container:
            set_condition(status, "InplaceUpdate", "False", "InplaceUpdating")
            set_condition(status, "Ready", "False", "InplaceUpdating", "inplace update is incompleted")
        else:
            set_condition(status, "Ready", "True" if pod_ready(pod) else "False", "PodReady")
        return status

    async def _write_status(self, sandbox: JsonObject, status: JsonObject) -> None:
        if {**sandbox.get("status", {}), **status} != sandbox.get("status", {}):
            await self.loop.patch(self.sandboxes, name_of(sandbox), {"status": status}, "status")

    # SandboxClaim

    async def _reconcile_claim(self, name: str) -> float | None:
        claim = self.loop.get(self.claims, name)
        if claim is None or claim["metadata"].get("deletionTimestamp") or not self.is_claiming:
            return None
        status: dict[str, Any] = dict(claim.get("status", {}))
        if status.get("phase") == "Completed":
            return await self._end_completed(claim, status)
        pool = self.loop.get(self.sets, claim["spec"]["templateName"]) if self.sees_sets else None
        if pool is None:
            message = f"SandboxSet {claim['spec']['templateName']} not found"
            await self._complete(claim, status, "SandboxSetNotFound", message)
            return None
        status.setdefault("claimStartTime", now_text())
        sandbox = self._claimed_by(name) or await self._claim(claim, pool)
        if sandbox is not None and self._has_what_was_asked(claim, sandbox):
            status["claimedReplicas"] = 1
            await self._complete(claim, status, "AllReplicasClaimed", "Successfully claimed 1/1 sandboxes")
            return None
        timeout = duration_seconds(claim["spec"].get("claimTimeout", "1m"))
        left = (seconds_until(status["claimStartTime"]) or 0) + timeout
        if left <= 0 or self._has_failed(sandbox):
            if sandbox is not None:
                await self.loop.delete(self.sandboxes, name_of(sandbox))
            message = f"Timeout reached after {timeout:g}s, claimed 0/1 sandboxes"
            set_condition(status, "TimedOut", "True", "ClaimTimeoutReached", f"Timeout after {timeout:g}s, claimed 0/1")
            await self._complete(claim, status, "TimeoutReached", message)
            return None
        await self._progress(claim, status)
        return min(left, 0.5)

    async def _end_completed(self, claim: JsonObject, status: JsonObject) -> float | None:
        """A claim goes so long after it was completed; the sandbox that it got stays."""
        ttl = claim["spec"].get("ttlAfterCompleted")
        if ttl is None or ttl.startswith("-"):
            return None
        left = (seconds_until(status["completionTime"]) or 0) + duration_seconds(ttl)
        if left <= 0:
            await self.loop.delete(self.claims, name_of(claim))
        return max(left, 0) or None

    async def _progress(self, claim: JsonObject, status: JsonObject) -> None:
        wanted = {**status, "phase": "Claiming", "message": "Claiming sandboxes: 0/1 claimed"}
        if claim.get("status", {}) != wanted:
            await self.loop.patch(self.claims, name_of(claim), {"status": wanted}, "status")

    async def _complete(self, claim: JsonObject, status: JsonObject, reason: str, message: str) -> None:
        status |= {"phase": "Completed", "message": message, "completionTime": now_text()}
        set_condition(status, "Completed", "True", reason, message)
        await self.loop.patch(self.claims, name_of(claim), {"status": status}, "status")

    def _claimed_by(self, claim: str) -> JsonObject | None:
        found = self.loop.all(self.sandboxes)
        return next((one for one in found if one["metadata"].get("labels", {}).get(CLAIM_NAME) == claim), None)

    async def _claim(self, claim: JsonObject, pool: JsonObject) -> JsonObject | None:
        ready = [one for one in self._unused(name_of(pool)) if self._is_ready(one)]
        if not ready and not claim["spec"].get("createOnNoStock", True):
            return None
        labels = {**claim["spec"].get("labels", {}), CLAIM_NAME: name_of(claim), CLAIMED: "true"}
        sandbox = min(ready, key=name_of) if ready else await self._make(pool, **labels)
        if sandbox is None:
            return None
        with picked(self._picked, name_of(sandbox)):
            return await self.loop.patch(self.sandboxes, name_of(sandbox), self._taken_by(claim, sandbox, labels))

    def _taken_by(self, claim: JsonObject, sandbox: JsonObject, labels: dict[str, str]) -> JsonObject:
        """What a claim writes onto its sandbox."""
        containers = [dict(one) for one in sandbox["spec"]["template"]["spec"]["containers"]]
        image = claim["spec"].get("inplaceUpdate", {}).get("image")
        containers[0]["image"] = image or containers[0]["image"]
        metadata = {"labels": claim["spec"].get("labels", {})}
        patch: JsonObject = {
            "metadata": {
                "labels": labels,
                "annotations": {f"{PREFIX}owner": claim["metadata"]["uid"]},
                "ownerReferences": [],
            },
            "spec": {"template": {"metadata": metadata, "spec": {"containers": containers}}},
        }
        if "shutdownTime" in claim["spec"]:
            patch["spec"]["shutdownTime"] = claim["spec"]["shutdownTime"]
        return patch

    def _has_what_was_asked(self, claim: JsonObject, sandbox: JsonObject) -> bool:
        status = sandbox.get("status", {})
        is_current = status.get("observedGeneration", 0) >= sandbox["metadata"].get("generation", 1)
        pod = self.loop.get(PODS, name_of(sandbox))
        image = claim["spec"].get("inplaceUpdate", {}).get("image")
        has_image = pod is not None and (image is None or pod["spec"]["containers"][0]["image"] == image)
        return is_current and has_image and self._is_ready(sandbox)

    def _has_failed(self, sandbox: JsonObject | None) -> bool:
        status = (sandbox or {}).get("status", {})
        conditions = status.get("conditions", [])
        return status.get("phase") in UNUSABLE or any(one["reason"] == "StartContainerFailed" for one in conditions)


def container_id(pod: JsonObject) -> str:
    return str((pod.get("status", {}).get("containerStatuses") or [{}])[0].get("containerID", ""))


def is_same(pod: JsonObject, replaced: dict[str, str]) -> bool:
    """Whether the container that was to be replaced still runs."""
    return replaced.get(pod["metadata"]["uid"]) == container_id(pod) != ""
