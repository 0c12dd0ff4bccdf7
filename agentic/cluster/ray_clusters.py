"""The run's RayCluster in the cluster: made or found, waited for, removed.

    head = await ensure(api, manifest, print, owner=owner)
    await remove(api, "raycluster-verl", "run-1")

One RayCluster stands for one run: what another run or a person made under the name is refused, and never removed. One
that was made from another manifest, or that KubeRay has given up, is replaced. Waiting follows the object's state and
conditions, its pods and their events, and ends early: with the trouble's name as soon as it has lasted, never with a
mere time-out. KubeRay's `ready` is kept when a pod goes later, so readiness is read from conditions and counts too.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from agentic.cluster.api import KubeApi
from agentic.cluster.apply import apply, find
from agentic.cluster.errors import (
    AdmissionRefusedError,
    ApiUnavailableError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    OtherRunError,
    RayClusterError,
    RayClusterLostError,
    WaitTimeoutError,
)
from agentic.cluster.labels import RUN_LABEL
from agentic.cluster.objects.ray_cluster import QUEUE_LABEL
from agentic.cluster.patience import Patience, TroubleClock
from agentic.cluster.ray_head import CLUSTER_LABEL, RayHead, head_of, is_owned_by
from agentic.cluster.resources import EVENTS, PODS, RAY_CLUSTERS, JsonObject, name_of, uid_of
from agentic.cluster.troubles import Evidence, Trouble, find_troubles, make_trouble, name_refusal
from agentic.cluster.watching import Watcher

MANIFEST_ANNOTATION = "agentic-rl/manifest"
"""Digest of what a RayCluster was made from: KubeRay changes no pod that is there, so a change replaces it."""
OWN_STATE = "ray-cluster-failed"
"""Trouble that repeats what the object's state says; any other says why."""
ORDINARY = Patience()

type Say = Callable[[str], None]


class Phase(Enum):
    """Where a RayCluster stands."""

    STARTING = "starting"
    QUEUED = "queued"
    SUSPENDED = "suspended"
    FAILED = "failed"
    READY = "ready"


def phase_of(cluster: JsonObject) -> Phase:
    """By its status. Pure."""
    status, spec = cluster.get("status") or {}, cluster.get("spec") or {}
    true = {one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"}
    if spec.get("suspend") or status.get("state") == "suspended" or "RayClusterSuspended" in true:
        labels = cluster["metadata"].get("labels") or {}
        return Phase.QUEUED if QUEUE_LABEL in labels else Phase.SUSPENDED
    if status.get("state") == "failed":
        return Phase.FAILED
    groups = spec.get("workerGroupSpecs") or ()
    wanted = max(int(status.get("desiredWorkerReplicas") or 0), sum(int(one.get("replicas") or 0) for one in groups))
    has_workers = int(status.get("readyWorkerReplicas") or 0) >= wanted
    is_ready = is_taken_up(cluster) and has_workers and status.get("state") == "ready" and "HeadPodReady" in true
    return Phase.READY if is_ready and (status.get("head") or {}).get("podIP") else Phase.STARTING


def is_taken_up(cluster: JsonObject) -> bool:
    """Whether KubeRay has seen it as it is now."""
    observed = (cluster.get("status") or {}).get("observedGeneration")
    return int(observed or 0) >= int(cluster["metadata"].get("generation") or 0)


def stamped(manifest: JsonObject) -> JsonObject:
    """The manifest with its own digest in an annotation."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), MANIFEST_ANNOTATION: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


async def ensure(
    api: KubeApi,
    manifest: JsonObject,
    say: Say,
    *,
    owner: JsonObject | None = None,
    patience: Patience = ORDINARY,
) -> RayHead:
    """The head of the run's RayCluster once all its pods are ready; made if it is not there.

    Raises:
        OtherRunError, ForeignObjectError: the name is taken.
        RayClusterError: a trouble that stays, by name; the manifest or the cluster has to change.
        RayClusterLostError: a trouble that may pass has lasted too long, or somebody deleted it.
    """
    wanted, name = stamped(manifest), name_of(manifest)
    found = await find(api, RAY_CLUSTERS, name)
    if found is not None and _is_outdated(found, wanted):
        say(f"RayCluster {name} of this run is {_why_outdated(found)}: replacing it")
        await _delete(api, name, uid_of(found), patience)
        found = None
    await _until_old_pods_are_gone(api, name, "" if found is None else uid_of(found), say, patience)
    try:
        await apply(api, wanted, owner=owner)
    except (NotFoundError, ForbiddenError, AdmissionRefusedError, InvalidObjectError) as error:
        trouble = name_refusal(f"RayCluster {name}", str(error))
        if trouble is None:
            raise
        raise RayClusterError(trouble.line) from error
    return await _Waiting(api, wanted, say, patience).until_ready()


async def remove(api: KubeApi, name: str, run_id: str, *, patience: Patience = ORDINARY) -> bool:
    """Delete the run's RayCluster and wait until its pods are gone; whether there was one. Others' are left alone.

    Raises:
        RayClusterLostError: it is deleted, but its pods do not go.
    """
    found = await find(api, RAY_CLUSTERS, name)
    if found is None or (found["metadata"].get("labels") or {}).get(RUN_LABEL) != run_id:
        return False
    await _delete(api, name, uid_of(found), patience)
    return True


def _is_outdated(found: JsonObject, wanted: JsonObject) -> bool:
    """Only of this run's own; whose it is otherwise is for `apply` to refuse."""
    metadata = found["metadata"]
    if (metadata.get("labels") or {}).get(RUN_LABEL) != wanted["metadata"]["labels"][RUN_LABEL]:
        return False
    made_from = (metadata.get("annotations") or {}).get(MANIFEST_ANNOTATION)
    is_same = made_from == wanted["metadata"]["annotations"][MANIFEST_ANNOTATION]
    return not is_same or "deletionTimestamp" in metadata or phase_of(found) is Phase.FAILED


def _why_outdated(found: JsonObject) -> str:
    if "deletionTimestamp" in found["metadata"]:
        return "being deleted"
    return "failed" if phase_of(found) is Phase.FAILED else "made from other settings"


async def _delete(api: KubeApi, name: str, uid: str, patience: Patience) -> None:
    """Returns when its pods are gone too: two heads of one run would work on the same folder."""
    async with (
        Watcher(api, RAY_CLUSTERS, fields=f"metadata.name={name}") as clusters,
        Watcher(api, PODS, labels=f"{CLUSTER_LABEL}={name}") as pods,
    ):
        await api.delete(RAY_CLUSTERS, name, uid=uid)
        await clusters.wait_for(
            name,
            lambda body: True if body is None or uid_of(body) != uid else None,
            timeout_seconds=patience.gone_seconds,
        )
        await _until_gone(pods, name, lambda pod: is_owned_by(pod, uid), patience)


async def _until_old_pods_are_gone(api: KubeApi, name: str, uid: str, say: Say, patience: Patience) -> None:
    """Those of an earlier RayCluster of the name, which somebody else deleted: KubeRay tells pods by their labels, so
    that a head on its way out would be taken for the new one's; and it works on until it ends."""

    def is_old(pod: JsonObject) -> bool:
        return not is_owned_by(pod, uid) and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")

    async with Watcher(api, PODS, labels=f"{CLUSTER_LABEL}={name}") as pods:
        old = sorted(name_of(pod) for pod in pods.objects.values() if is_old(pod))
        if old:
            say(f"waiting for the end of what an earlier RayCluster {name} left: {', '.join(old)}")
            await _until_gone(pods, name, is_old, patience)


async def _until_gone(pods: Watcher, name: str, is_awaited: Callable[[JsonObject], bool], patience: Patience) -> None:
    def awaited(found: Mapping[str, JsonObject]) -> list[str]:
        return sorted(name for name, pod in found.items() if is_awaited(pod))

    try:
        await pods.wait_until(lambda found: None if awaited(found) else True, timeout_seconds=patience.gone_seconds)
    except WaitTimeoutError as error:
        left = " ".join(awaited(pods.objects))
        raise RayClusterLostError(
            f"RayCluster {name} is deleted but its pods do not go: {left}: if their node is lost for good, "
            f"kubectl delete pod --force {left}; two heads must not work on one run"
        ) from error


class _Waiting:
    """One RayCluster on its way to ready."""

    def __init__(self, api: KubeApi, wanted: JsonObject, say: Say, patience: Patience) -> None:
        self._api = api
        self._name = name_of(wanted)
        self._run_id = wanted["metadata"]["labels"][RUN_LABEL]
        self._say = say
        self._patience = patience
        self._clock = TroubleClock(patience)
        self._heard_at = asyncio.get_running_loop().time()
        self._told = ""

    async def until_ready(self) -> RayHead:
        loop = asyncio.get_running_loop()
        pause = self._patience.look_seconds
        deadline = loop.time() + self._patience.start_seconds
        async with (
            Watcher(self._api, RAY_CLUSTERS, fields=f"metadata.name={self._name}") as clusters,
            Watcher(self._api, PODS, labels=f"{CLUSTER_LABEL}={self._name}") as pods,
        ):
            while True:
                with contextlib.suppress(WaitTimeoutError):
                    ready = await clusters.wait_for(self._name, self._ready, timeout_seconds=pause)
                    head = head_of(ready, pods.objects)
                    if head is not None:
                        return head
                    await asyncio.sleep(pause / 4)  # one watch is behind the other, or the head is on its way out
                cluster = clusters.objects.get(self._name)
                if cluster is not None and phase_of(cluster) is Phase.QUEUED:
                    deadline = loop.time() + self._patience.start_seconds
                    self._tell(f"RayCluster {self._name} waits in its queue")
                    continue
                await self._look(cluster, list(pods.objects.values()), loop.time(), deadline)

    def _ready(self, cluster: JsonObject | None) -> JsonObject | None:
        """Raises what makes waiting pointless."""
        if cluster is None or "deletionTimestamp" in cluster["metadata"]:
            raise RayClusterLostError(f"RayCluster {self._name} was deleted while it started: trying again makes it")
        owner = (cluster["metadata"].get("labels") or {}).get(RUN_LABEL)
        if owner != self._run_id:
            raise OtherRunError(
                f"RayCluster {self._name} was taken over by run {owner}, which began at the same moment: name another "
                "in cluster.head.name"
            )
        phase = phase_of(cluster)
        if phase is Phase.SUSPENDED:
            raise RayClusterError(
                f"RayCluster {self._name} is suspended (spec.suspend) and in no queue that would resume it: "
                f'kubectl patch raycluster {self._name} --type=merge -p \'{{"spec":{{"suspend":false}}}}\''
            )
        return cluster if phase is Phase.READY else None

    async def _look(self, cluster: JsonObject | None, pods: Sequence[JsonObject], now: float, deadline: float) -> None:
        """Say what is in the way; raise it when it has been there for too long."""
        if cluster is None:
            return
        troubles = find_troubles(await self._evidence(cluster, pods)) + self._silence(cluster, now)
        for one in self._clock.fresh(troubles, now):
            self._say(one.line)
        if phase_of(cluster) is Phase.FAILED:
            raise _failed(self._name, cluster, troubles)
        overdue = self._clock.overdue(troubles, now)
        if overdue is not None:
            raise _error_of(overdue)(overdue.line)
        self._tell(describe(cluster, pods))
        if now >= deadline:
            why = "; ".join(one.line for one in troubles) or "no trouble has a name"
            raise RayClusterLostError(
                f"RayCluster {self._name} is not ready after {self._patience.start_seconds:.0f} s and {why}: "
                f"{describe(cluster, pods)}"
            )

    def _silence(self, cluster: JsonObject, now: float) -> list[Trouble]:
        """No event and no state tells of an operator that is not there; it may come back."""
        if is_taken_up(cluster):
            self._heard_at = now
        if now - self._heard_at < self._patience.lasting_seconds:
            return []
        seconds = now - self._heard_at
        where, message = f"raycluster {self._name}", f"KubeRay has not looked at it for {seconds:.0f} s"
        return [make_trouble("controller-silent", where, message, transient=True)]

    async def _evidence(self, cluster: JsonObject, pods: Sequence[JsonObject]) -> Evidence:
        """Events of these very objects: those of an earlier RayCluster of the name are still there for an hour."""
        names = [self._name, *(name_of(pod) for pod in pods)]
        uids = {uid_of(cluster), *(uid_of(pod) for pod in pods)}
        lists = await asyncio.gather(*map(self._events_of, names))
        events = [one for found in lists for one in found if one.get("involvedObject", {}).get("uid") in uids]
        return Evidence(pods=pods, events=events, objects=[{**cluster, "kind": RAY_CLUSTERS.kind}])

    async def _events_of(self, name: str) -> Sequence[JsonObject]:
        """None where they cannot be read: states say most, and the watches go on by themselves."""
        try:
            return (await self._api.list(EVENTS, fields=f"involvedObject.name={name}")).items
        except (ApiUnavailableError, ForbiddenError) as error:
            self._tell(f"events cannot be read for the moment: {error}")
            return ()

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._say(line)


def _error_of(trouble: Trouble) -> type[RayClusterError | RayClusterLostError]:
    return RayClusterLostError if trouble.transient else RayClusterError


def _failed(name: str, cluster: JsonObject, troubles: Sequence[Trouble]) -> RayClusterError | RayClusterLostError:
    """KubeRay gave it up; the next try replaces it unless a trouble that stays says why."""
    causes = [one for one in troubles if one.name != OWN_STATE]
    for one in sorted(causes, key=lambda trouble: trouble.transient):
        return _error_of(one)(f"RayCluster {name} has failed: {one.line}")
    reason = (cluster.get("status") or {}).get("reason") or "KubeRay gives no reason"
    return RayClusterLostError(f"RayCluster {name} has failed: {reason}: trying again makes it anew")


def describe(cluster: JsonObject, pods: Sequence[JsonObject]) -> str:
    """What is ready of it, and what each pod that is not waits for."""
    status = cluster.get("status") or {}
    reasons = [
        f"{one.get('type')}: {one.get('reason')}"
        for one in status.get("conditions") or ()
        if one.get("type") == "HeadPodReady" and one.get("status") != "True"
    ]
    workers = f"{status.get('readyWorkerReplicas') or 0}/{status.get('desiredWorkerReplicas') or 0} workers"
    phases = [f"{name_of(pod)} {(pod.get('status') or {}).get('phase', 'Unknown')}" for pod in pods]
    return f"RayCluster {name_of(cluster)}: {', '.join([workers, *reasons, *sorted(phases)])}"
