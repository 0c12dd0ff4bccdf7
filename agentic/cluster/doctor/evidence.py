"""Collects what a cluster still knows about a run: objects, events, and the last lines of what did not go well.

Everything that carries the run's label is looked at, and the events about it; events outlive their objects by an hour,
so that a pod that is gone may still be explained. What the account may not see is left out.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.examining import if_allowed
from agentic.cluster.errors import ApiUnavailableError, ForbiddenError, InvalidObjectError, NotFoundError
from agentic.cluster.labels import selector_of_run
from agentic.cluster.objects.claims import claims_of
from agentic.cluster.objects.image_build import KEY_LABEL
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


async def gather_evidence(
    client: KubeClient, cluster: ClusterSettings, run_id: str, of_sandboxes: str | None = None
) -> Evidence:
    """All that is to be known about a run in the client's namespace, and of its sandboxes where they live in another;
    empty when there is nothing of it. Raises ForbiddenError when nothing of it may be seen."""
    label = selector_of_run(run_id)
    kinds = (WORKFLOWS, RAY_CLUSTERS, JOBS, PODS)
    found = await asyncio.gather(*(_list(client, kind, label) for kind in kinds))
    if all(one is None for one in found):
        names = ", ".join(kind.plural for kind in kinds)
        raise ForbiddenError(f"run {run_id}: the account may list none of {names} in {client.namespace}")
    workflows, rays, jobs, pods = ([] if one is None else one for one in found)
    if not any(found):
        return Evidence()
    jobs, pods = without_overcome_builds(workflows, jobs, pods)
    names_of_claims = {claim.claim for claim in claims_of(cluster).values()}
    claims = [claim for claim in await _list(client, CLAIMS, "") or () if name_of(claim) in names_of_claims]
    objects = [*workflows, *rays, *jobs, *claims]
    said = await _list(client, EVENTS, "") or []
    if of_sandboxes not in (None, client.namespace):
        pods += await _list(client, PODS, label, of_sandboxes) or []
        said += await _list(client, EVENTS, "", of_sandboxes) or []
    events = about(said, [*objects, *pods], workflows)
    return Evidence(pods=pods, events=events, objects=objects, logs=await read_logs(client, pods))


async def _list(
    client: KubeClient, kind: Resource, labels: str, namespace: str | None = None
) -> list[JsonObject] | None:
    """With the kind in each, which lists of the server's own kinds leave out; None where the account may not look."""
    try:
        found = await if_allowed(client.list(kind, labels=labels, namespace=namespace))
    except NotFoundError:
        return []
    return None if found is None else [{"kind": kind.kind, **body} for body in found.items]


def without_overcome_builds(
    workflows: Sequence[JsonObject], jobs: Sequence[JsonObject], pods: Sequence[JsonObject]
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Jobs and pods, but for builds of images that a later one made good, that an earlier attempt at the run made, or
    that a run went well without. Pure."""
    newest = max(workflows, key=_made_at, default=None)
    since = "" if newest is None else _made_at(newest)
    went_well = newest is not None and (newest.get("status") or {}).get("phase") == "Succeeded"
    built = {_image_of(job) for job in jobs if _is_complete(job)}

    def counts(body: JsonObject) -> bool:
        image = _image_of(body)
        return image is None or not (went_well or image in built or _made_at(body) < since)

    return [job for job in jobs if counts(job)], [pod for pod in pods if counts(pod)]


def _image_of(body: JsonObject) -> str | None:
    """What the image that is built by it is made of; None for anything but builds."""
    return (body["metadata"].get("labels") or {}).get(KEY_LABEL)


def _made_at(body: JsonObject) -> str:
    return str(body["metadata"].get("creationTimestamp") or "")


def _is_complete(job: JsonObject) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("status")) == ("Complete", "True") for one in conditions)


def about(
    events: Iterable[JsonObject], bodies: Sequence[JsonObject], workflows: Sequence[JsonObject]
) -> list[JsonObject]:
    """Events of what is there, and of pods of the run's Workflows that are there no more: Argo calls them by Workflow,
    template and a number, so that those of a run whose name begins like this one's are none of them. Pure."""
    names = {name_of(body) for body in bodies}
    of_pods = re.compile("|".join(_pods_of(workflow) for workflow in workflows) or r"(?!)")
    named = ((event, str((event.get("involvedObject") or {}).get("name"))) for event in events)
    return [event for event, name in named if name in names or of_pods.fullmatch(name)]


def _pods_of(workflow: JsonObject) -> str:
    """What the names of its pods look like."""
    templates = "|".join(re.escape(str(one.get("name"))) for one in workflow["spec"].get("templates") or ())
    return rf"{re.escape(name_of(workflow))}-(?:{templates})-\d+"


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
        said = client.log(
            name_of(pod), container=container, tail_lines=TAIL_LINES, namespace=pod["metadata"].get("namespace")
        )
        pieces = [piece async for piece in said]
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
