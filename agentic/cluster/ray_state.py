"""Where a RayCluster stands, by what KubeRay writes into its status. Pure.

KubeRay's state `ready` is kept when a pod goes later, so readiness is read from conditions and counts as well.
"""

from collections.abc import Sequence
from enum import Enum

from agentic.cluster.objects.ray_cluster import QUEUE_LABEL
from agentic.cluster.resources import JsonObject, name_of


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
