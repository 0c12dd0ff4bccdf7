"""What of a run's needs a cluster has already, for `plan`. Only reads."""

import asyncio
from collections.abc import Mapping, Sequence

from agentic.cluster.client import KubeClient
from agentic.cluster.errors import ForbiddenError, NotFoundError
from agentic.cluster.labels import selector_of_run
from agentic.cluster.resources import (
    CLAIMS,
    NODES,
    RAY_CLUSTERS,
    SERVICE_ACCOUNTS,
    WORKFLOWS,
    JsonObject,
    Resource,
    name_of,
)
from agentic.cluster.settings import ClaimSettings, ClusterSettings
from agentic.errors import AgenticError
from workflows.argo.nodes import phase_of
from workflows.errors import ClusterUnreachableError
from workflows.submission import connected


async def describe_cluster(settings: ClusterSettings, run_id: str, environment: Mapping[str, str]) -> list[str]:
    """Lines for people; a cluster that is not there is one of them, and no failure."""
    try:
        async with connected(settings, environment) as connection:
            if connection.kube is None:
                return ["cluster     not looked at: there is a login at the Argo server only"]
            return await _look(connection.kube, settings, run_id)
    except (ClusterUnreachableError, AgenticError) as error:
        return [f"cluster     {error}"]


async def _look(kube: KubeClient, settings: ClusterSettings, run_id: str) -> list[str]:
    claims = [settings.models, settings.datasets, settings.runs]
    found = await asyncio.gather(
        _gpus(kube, settings),
        *(_claim(kube, claim) for claim in claims),
        _named(kube, SERVICE_ACCOUNTS, settings.service_account, "account     "),
        _named(kube, RAY_CLUSTERS, settings.head.name, "raycluster  "),
        _attempts(kube, run_id),
    )
    return [line for line in found if line]


async def _claim(kube: KubeClient, claim: ClaimSettings) -> str:
    there = await _find(kube, CLAIMS, claim.claim)
    if isinstance(there, str):
        return f"claim       {claim.claim}: {there}"
    if there is None:
        return f"claim       {claim.claim}: to be made, {claim.size}, {claim.access_mode}"
    status = there.get("status") or {}
    size = (status.get("capacity") or {}).get("storage", "size unknown")
    return f"claim       {claim.claim}: there already, {status.get('phase', 'Pending')}, {size}"


async def _named(kube: KubeClient, resource: Resource, name: str, title: str) -> str:
    there = await _find(kube, resource, name)
    if isinstance(there, str):
        return f"{title}{name}: {there}"
    return f"{title}{name}: {'to be made' if there is None else 'there already'}"


async def _find(kube: KubeClient, resource: Resource, name: str) -> JsonObject | str | None:
    """The object, or why nothing is known of it."""
    try:
        return await kube.get(resource, name)
    except NotFoundError as error:
        return f"the cluster does not know {resource.name}" if "requested resource" in str(error) else None
    except ForbiddenError:
        return f"unknown, since this account may not get {resource.plural}"


async def _gpus(kube: KubeClient, settings: ClusterSettings) -> str:
    try:
        nodes = (await kube.list(NODES)).items
    except ForbiddenError:
        return "nodes       unknown, since this account may not list them"
    with_gpus = {name_of(node): _allocatable(node, settings.gpu_resource) for node in nodes}
    fitting = {name: count for name, count in with_gpus.items() if count}
    gpus = f"{sum(fitting.values())} in all, {max(fitting.values(), default=0)} at most in one"
    return f"nodes       {len(nodes)}, {len(fitting)} of them with GPUs: {gpus}"


def _allocatable(node: JsonObject, resource: str) -> int:
    return int((node.get("status", {}).get("allocatable") or {}).get(resource, 0))


async def _attempts(kube: KubeClient, run_id: str) -> str:
    found: Sequence[JsonObject] = (await kube.list(WORKFLOWS, labels=selector_of_run(run_id))).items
    said = ", ".join(f"{name_of(workflow)} {phase_of(workflow)}" for workflow in found)
    return f"workflows   {said}" if said else ""
