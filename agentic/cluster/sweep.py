"""Removing what a run has left, by its label, when it is over: in any order of events, twice, and beside other runs.

What goes: the RayCluster first, since what it trains must not go on while its sandboxes are taken away; then sandboxes,
pools, Jobs, pods and the rest; network policies last, since a pod that was deleted lives on for a moment. What has
owner references goes as well, now instead of when its owner does. What stays: the claims, BuildKit and the account,
which carry no run; the Workflow and the pods of its steps, one of which may be asking.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.labels import ROLE_LABEL, selector_of_run
from agentic.cluster.resources import (
    CONFIG_MAPS,
    DAEMON_SETS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    RAY_CLUSTERS,
    SERVICES,
    JsonObject,
    Resource,
    name_of,
    uid_of,
)

if TYPE_CHECKING:
    from agentic.cluster.client import KubeClient

KRUISE = ("agents.kruise.io", "apps.kruise.io")
"""Groups of the same kinds: today's, and the one that older guides name."""
EXTENSIONS = ("extensions.agents.x-k8s.io", "v1beta1")
SANDBOXES = (
    *(Resource(group, "v1alpha1", "sandboxclaims", "SandboxClaim") for group in KRUISE),
    *(Resource(group, "v1alpha1", "sandboxsets", "SandboxSet") for group in KRUISE),
    *(Resource(group, "v1alpha1", "sandboxes", "Sandbox") for group in KRUISE),
    Resource(*EXTENSIONS, "sandboxclaims", "SandboxClaim"),
    Resource(*EXTENSIONS, "sandboxwarmpools", "SandboxWarmPool"),
    Resource(*EXTENSIONS, "sandboxtemplates", "SandboxTemplate"),
)
"""Claims before what they claim, whichever controller the run had."""

KINDS = (RAY_CLUSTERS, *SANDBOXES, JOBS, DAEMON_SETS, PODS, SERVICES, CONFIG_MAPS, NETWORK_POLICIES)
"""In the order in which they go."""

STEP_OF = "workflows.argoproj.io/workflow"
"""Label of the pods of a Workflow's steps."""
POLL_SECONDS = 1.0


async def sweep(
    client: KubeApi,
    namespace: str,
    run_id: str,
    *,
    kinds: Sequence[Resource] = KINDS,
    keeps_logs: bool = False,
) -> list[str]:
    """What was removed, such as `RayCluster raycluster-verl`; `keeps_logs` spares Jobs and pods that have ended.

    Returns when all of it is told to end; `left` says what has not gone yet.
    """
    removed: list[str] = []
    for kind in kinds:
        for body in await _of_run(client, kind, namespace, run_id):
            if body["metadata"].get("deletionTimestamp") or (keeps_logs and has_ended(kind, body)):
                continue
            if await client.delete(kind, name_of(body), namespace=namespace, uid=uid_of(body)):
                removed.append(f"{kind.kind} {name_of(body)}")
    return removed


async def left(
    client: KubeApi,
    namespace: str,
    run_id: str,
    *,
    kinds: Sequence[Resource] = KINDS,
    counts_steps: bool = False,
    timeout_seconds: float = 0.0,
) -> list[str]:
    """What still carries the run's label, beside its Workflow, once nothing does or the time is over; `counts_steps`
    counts the pods of its steps, which go with the Workflow."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while True:
        found = [
            f"{kind.kind} {name_of(body)}"
            for kind in kinds
            for body in await _of_run(client, kind, namespace, run_id, spares_steps=not counts_steps)
        ]
        if not found or asyncio.get_running_loop().time() >= deadline:
            return found
        await asyncio.sleep(POLL_SECONDS)


async def sweep_short_lived(client: "KubeClient", namespace: str, role: str, life_seconds: float) -> list[str]:
    """Removes pods that are for one try and that their maker should have removed: those of a role that have ended, or
    that are older than any of them lives. A try that is under way keeps its own."""
    found = (await client.list(PODS, namespace=namespace, labels=f"{ROLE_LABEL}={role}")).items
    oldest = (await client.server_seconds()) - life_seconds if found else 0.0
    removed: list[str] = []
    for pod in found:
        is_over = has_ended(PODS, pod) or made_at(pod) < oldest
        if is_over and await client.delete(PODS, name_of(pod), namespace=namespace, uid=uid_of(pod)):
            removed.append(f"{PODS.kind} {name_of(pod)}")
    return removed


def made_at(body: JsonObject) -> float:
    """In unix seconds, by the API server's clock."""
    return datetime.fromisoformat(body["metadata"]["creationTimestamp"]).timestamp()


def has_ended(kind: Resource, body: JsonObject) -> bool:
    """Whether a Job or pod is over, so that all it holds is a log."""
    status = body.get("status") or {}
    if kind == PODS:
        return status.get("phase") in ("Succeeded", "Failed")
    conditions = status.get("conditions") or ()
    done = any(one.get("type") in ("Complete", "Failed") and one.get("status") == "True" for one in conditions)
    return kind == JOBS and done


async def _of_run(
    client: KubeApi, kind: Resource, namespace: str, run_id: str, *, spares_steps: bool = True
) -> Sequence[JsonObject]:
    """A kind that the cluster does not have holds nothing of the run; nor one that only other sandboxes need, when this
    account has no right to it."""
    try:
        found = await client.list(kind, namespace=namespace, labels=selector_of_run(run_id))
    except NotFoundError:
        return ()
    except ForbiddenError:
        if kind in (*SANDBOXES, DAEMON_SETS):
            return ()
        raise
    return [body for body in found.items if not spares_steps or STEP_OF not in (body["metadata"].get("labels") or {})]
