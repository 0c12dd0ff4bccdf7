"""The run's RayCluster in the cluster: made or found, waited for, removed.

    head = await ensure(api, manifest, print, owner=owner)
    await remove(api, "raycluster-verl", "run-1")

One RayCluster stands for one run: what another run or a person made under the name is refused, and never removed. One
that was made from another manifest, or that KubeRay has given up, is replaced; and no head is made beside one that is
still ending. How it is waited for is `ray_start`'s, what its status means `ray_state`'s.
"""

import hashlib
import json
from collections.abc import Callable, Mapping

from agentic.cluster.api import KubeApi
from agentic.cluster.apply import apply, find
from agentic.cluster.errors import (
    AdmissionRefusedError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    RayClusterError,
    RayClusterLostError,
    WaitTimeoutError,
)
from agentic.cluster.labels import RUN_LABEL
from agentic.cluster.patience import Patience
from agentic.cluster.ray_head import CLUSTER_LABEL, RayHead, is_owned_by
from agentic.cluster.ray_start import RayStart, Say
from agentic.cluster.ray_state import Phase, phase_of
from agentic.cluster.resources import PODS, RAY_CLUSTERS, JsonObject, name_of, uid_of
from agentic.cluster.troubles import name_refusal
from agentic.cluster.watching import Watcher

MANIFEST_ANNOTATION = "agentic-rl/manifest"
"""Digest of what a RayCluster was made from: KubeRay changes no pod that is there, so a change replaces it."""
ORDINARY = Patience()


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
    return await RayStart(api, wanted, say, patience).until_ready()


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
