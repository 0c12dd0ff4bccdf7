"""Collects what a cluster still knows about a run: objects, events, and the last lines of what did not go well.

Everything that carries the run's label is looked at, and the events about it; events outlive their objects by an hour,
so that a pod that is gone may still be explained. What the account may not see is left out.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.examining import if_allowed
from agentic.cluster.errors import ApiUnavailableError, ForbiddenError, InvalidObjectError, NotFoundError
from agentic.cluster.labels import selector_of_run
from agentic.cluster.objects.claims import claims_of
from agentic.cluster.resources import (
    CLAIMS,
    EVENTS,
    JOBS,
    PODS,
    RAY_CLUSTERS,
    WORKFLOWS,
    JsonObject,
    Resource,
    name_of,
)
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.troubles import Evidence, Trouble, make_trouble
from agentic.cluster.troubles.observations import step_of

TAIL_LINES = 400
"""Of a log: an error and its traceback stand at its end."""
LOGS_AT_MOST = 24
"""Of pods, the newest; a fan-out fails in the same way everywhere."""
ARGOS_OWN = frozenset(["init", "wait"])
"""Containers of Argo's executor."""
SILENT_SECONDS = 60.0
"""How long a controller may take to notice an object."""
CONTROLLERS = {WORKFLOWS.kind: "Argo's workflow-controller", RAY_CLUSTERS.kind: "KubeRay's operator"}


async def gather_evidence(client: KubeClient, cluster: ClusterSettings, run_id: str) -> Evidence:
    """All that is to be known about a run in the client's namespace; empty when there is nothing of it."""
    label = selector_of_run(run_id)
    kinds = (WORKFLOWS, RAY_CLUSTERS, JOBS, PODS)
    workflows, rays, jobs, pods = await asyncio.gather(*(_list(client, kind, label) for kind in kinds))
    if not (workflows or rays or jobs or pods):
        return Evidence()
    names = {claim.claim for claim in claims_of(cluster).values()}
    claims = [claim for claim in await _list(client, CLAIMS, "") if name_of(claim) in names]
    objects = [*workflows, *rays, *jobs, *claims]
    events = _about(await _list(client, EVENTS, ""), [*objects, *pods], workflows)
    return Evidence(pods=pods, events=events, objects=objects, logs=await read_logs(client, pods))


async def _list(client: KubeClient, kind: Resource, labels: str) -> list[JsonObject]:
    """With the kind in each, which lists of the server's own kinds leave out."""
    try:
        found = await if_allowed(client.list(kind, labels=labels))
    except NotFoundError:
        return []
    return [{"kind": kind.kind, **body} for body in (found.items if found else ())]


def _about(
    events: Iterable[JsonObject], bodies: Sequence[JsonObject], workflows: Sequence[JsonObject]
) -> list[JsonObject]:
    """Events of what is there, and of pods of the run's Workflows that are there no more."""
    names = {name_of(body) for body in bodies}
    starts = tuple(f"{name_of(workflow)}-" for workflow in workflows)
    return [
        event
        for event in events
        if (name := str(event["involvedObject"].get("name"))) in names or (starts and name.startswith(starts))
    ]


async def read_logs(client: KubeClient, pods: Sequence[JsonObject]) -> dict[str, str]:
    """The ends of the logs of containers that failed, by step where there is one, else by pod."""
    unwell = [(pod, container) for pod in pods for container in unwell_containers(pod)]
    newest = sorted(unwell, key=lambda one: str(one[0]["metadata"].get("creationTimestamp")))[-LOGS_AT_MOST:]
    texts = await asyncio.gather(*(_tail(client, pod, container) for pod, container in newest))
    logs: dict[str, str] = {}
    for (pod, _), text in zip(newest, texts, strict=True):
        name = step_of(pod) or name_of(pod)
        logs[name] = logs.get(name, "") + text
    return logs


def unwell_containers(pod: JsonObject) -> list[str]:
    """Those that ended badly, or are started again and again. Pure."""
    statuses: Sequence[JsonObject] = (pod.get("status") or {}).get("containerStatuses") or ()
    return [str(one["name"]) for one in statuses if one.get("name") not in ARGOS_OWN and _is_unwell(one)]


def _is_unwell(container: JsonObject) -> bool:
    states: Iterable[Mapping[str, JsonObject]] = (container.get("state") or {}, container.get("lastState") or {})
    return any(state.get("terminated", {}).get("exitCode", 0) != 0 for state in states)


async def _tail(client: KubeClient, pod: JsonObject, container: str) -> str:
    try:
        pieces = [piece async for piece in client.log(name_of(pod), container=container, tail_lines=TAIL_LINES)]
    except (NotFoundError, InvalidObjectError, ForbiddenError, ApiUnavailableError):
        return ""  # It went meanwhile, never ran, is not ours to read, or its node is gone.
    return b"".join(pieces).decode(errors="replace")


def judge_silence(objects: Sequence[JsonObject], now_seconds: float) -> list[Trouble]:
    """Workflows and RayClusters that no controller has touched. Pure."""
    return [
        make_trouble(
            "controller-silent",
            f"{body['kind'].lower()} {name_of(body)}",
            f"{CONTROLLERS[body['kind']]} has not touched it",
        )
        for body in objects
        if body.get("kind") in CONTROLLERS and not body.get("status") and _age(body, now_seconds) > SILENT_SECONDS
    ]


def _age(body: JsonObject, now_seconds: float) -> float:
    return now_seconds - datetime.fromisoformat(str(body["metadata"]["creationTimestamp"])).timestamp()
