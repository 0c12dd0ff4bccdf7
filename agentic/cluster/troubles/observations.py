"""What components said about one object, taken out of where each of them writes it.

An observation is one text at one place. What was said about an object that is well by now is no observation: a pod that
runs was unschedulable once, or was started again, and nobody needs to hear of it. A pod, a node of a Workflow and a log
that belong to the same step are about the same thing, so that it is told once.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentic.cluster.labels import ROLE_LABEL, STEP_LABEL
from agentic.cluster.resources import JsonObject, name_of
from agentic.cluster.troubles.kinds import Evidence, Place

NODE_NAME = "workflows.argoproj.io/node-name"
"""Annotation of Argo's pods: `workflow.task(0)`."""
ARGO_PREFIX = re.compile(r"^(?:Pod failed before \S+ container starts due to |main: )")
"""What Argo 4.0.5 puts before kubelet's words (`inferFailedReason`)."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")
RAY_PREFIX = re.compile(r"^\(\w+(?:\([^)]*\))? pid=\d+[^)]*\)\s*")
"""What Ray puts before the lines of its workers."""
IN_THE_HEAD = ("train", "evaluate")
"""Steps whose work is done by the RayCluster, not by their own pods."""
OWNERS = ("ray.io/node-type", ROLE_LABEL, "type", "app")
"""Labels that tell whose a pod is, the most exact first."""
UNWELL_NODES = ("Failed", "Error", "Pending")


@dataclass(frozen=True, slots=True)
class Observation:
    """One text at one place."""

    place: Place
    about: str
    """What it belongs to, such as `pod x`: one trouble is told once about it, and general kinds yield within it."""
    where: str
    """The object, and the part of it."""
    text: str
    owner: str = ""
    """Whose it is: `head`, `worker`, `sandbox`, `buildkitd`, `image-build`, `step NAME`; empty where nobody knows."""


def observe(evidence: Evidence) -> Iterator[Observation]:
    """All of it, states before events before logs: the first that shows a trouble is the one that is told."""
    well = {_where(body) for body in (*evidence.pods, *evidence.objects) if _is_well(body)}
    for pod in evidence.pods:
        yield from _of_pod(pod, is_well=_where(pod) in well and not evidence.with_past)
    for body in evidence.objects:
        if _where(body) not in well:
            yield from _of_object(body)
    owners = {_where(body): owner_of(body) for body in (*evidence.pods, *evidence.objects)}
    for event in evidence.events:
        where = _where_of_event(event)
        if where not in well:
            yield Observation(Place.EVENT, where, where, _reason(event), owners.get(where, ""))
    for name, text in evidence.logs.items():
        step = name.removesuffix(".log")
        owner = owners.get(f"pod {step}") or (_owner_of_log(step) if owners else "")
        for line in text.splitlines():
            said = RAY_PREFIX.sub("", ANSI.sub("", line))
            yield Observation(Place.LOG, f"step {step}", f"log {name}", said, owner)


def owner_of(body: JsonObject) -> str:
    """Whose pod, or Job, it is; see `Observation.owner`."""
    labels = body["metadata"].get("labels") or {}
    if step := labels.get(STEP_LABEL) or step_of(body):
        return f"step {step}"
    return next((str(labels[name]) for name in OWNERS if labels.get(name)), "")


def _owner_of_log(step: str) -> str:
    return "head" if step in IN_THE_HEAD else f"step {step}"


def _where(body: JsonObject) -> str:
    return f"{str(body.get('kind') or 'Pod').lower()} {name_of(body)}"


def _where_of_event(event: JsonObject) -> str:
    target = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(target.get('kind', 'object')).lower()} {target.get('name', '')}"


def _reason(said: Mapping[str, Any]) -> str:
    """`reason: message` of an event, a condition or a state."""
    return f"{said.get('reason') or ''}: {said.get('message') or said.get('note') or ''}"


def _of_pod(pod: JsonObject, *, is_well: bool) -> Iterator[Observation]:
    where, status, owner = _where(pod), pod.get("status", {}), owner_of(pod)
    step = step_of(pod)
    about = f"step {step}" if step else where
    if status.get("reason"):
        yield Observation(Place.POD, about, where, _reason(status), owner)
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) in (
            ("PodScheduled", "False"),
            ("DisruptionTarget", "True"),
        ):
            yield Observation(Place.POD, about, where, _reason(condition), owner)
    if is_well:
        return
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        yield from _of_container(about, where, container, owner)


def step_of(pod: JsonObject) -> str:
    """The step that Argo made the pod for; empty for other pods."""
    node = str((pod.get("metadata", {}).get("annotations") or {}).get(NODE_NAME, ""))
    return _step_name(node.rpartition(".")[2]) if "." in node else ""


def _step_name(node: str) -> str:
    """A node's display name without the counters of retries and of a fan-out: `build-images(3:x)(0)`."""
    return node.partition("(")[0]


def _of_container(about: str, where: str, container: JsonObject, owner: str) -> Iterator[Observation]:
    part = f"{where}, container {container.get('name', '')}"
    state, last = container.get("state") or {}, container.get("lastState") or {}
    if waiting := state.get("waiting"):
        yield Observation(Place.WAITING, about, part, _reason(waiting), owner)
    for ended in (state.get("terminated"), last.get("terminated")):
        if ended and ended.get("exitCode") != 0:
            reason = f"{ended.get('reason') or 'Error'} (exit code {ended.get('exitCode')})"
            yield Observation(Place.ENDED, about, part, f"{reason}: {ended.get('message') or ''}", owner)


def _of_object(body: JsonObject) -> Iterator[Observation]:
    where, status = _where(body), body.get("status") or {}
    for text in _state_of(str(body.get("kind", "")), status):
        yield Observation(Place.OBJECT, where, where, text, owner_of(body))
    if body.get("kind") == "Workflow":
        yield from _of_workflow(where, status)


def _state_of(kind: str, status: Mapping[str, Any]) -> Iterator[str]:
    match kind:
        case "PersistentVolumeClaim":
            yield f"Claim is {status.get('phase', 'Pending')}"
        case "RayCluster":
            yield f"RayCluster is {status.get('state') or 'not ready'}: {status.get('reason') or ''}"
    for condition in status.get("conditions") or ():
        if kind in ("Node", "RayCluster"):
            yield (
                f"{'Node ' if kind == 'Node' else ''}{condition.get('type')} is {condition.get('status')}: "
                + _reason(condition)
            )
        else:
            yield _reason(condition)
    if status.get("message"):
        yield str(status["message"])


def _of_workflow(where: str, status: Mapping[str, Any]) -> Iterator[Observation]:
    """What its nodes say; a try of a step that succeeded after all is forgotten."""
    nodes: Mapping[str, Any] = status.get("nodes") or {}
    forgotten = {
        child
        for node in nodes.values()
        if node.get("type") == "Retry" and node.get("phase") == "Succeeded"
        for child in node.get("children") or ()
    }
    for name, node in nodes.items():
        message = str(node.get("message") or "")
        if message and node.get("phase") in UNWELL_NODES and name not in forgotten:
            step = f"step {_step_name(str(node.get('displayName') or name))}"
            yield Observation(Place.OBJECT, step, f"{where}, {step}", ARGO_PREFIX.sub("", message), step)


def _is_well(body: JsonObject) -> bool:
    """Whether it is as it should be, so that what was once said about it counts no more."""
    status = body.get("status") or {}
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    match body.get("kind"):
        case "Pod" | None:
            return status.get("phase") == "Succeeded" or conditions.get("Ready") == "True"
        case "PersistentVolumeClaim":
            return status.get("phase") == "Bound"
        case "RayCluster":
            return status.get("state") == "ready"
        case "Workflow":
            return status.get("phase") == "Succeeded"
        case "Job":
            return conditions.get("Complete") == "True"
        case "Node":
            pressed = any(conditions.get(f"{what}Pressure") == "True" for what in ("Memory", "Disk", "PID"))
            return conditions.get("Ready") == "True" and not pressed
        case _:
            return conditions.get("Ready") == "True" or conditions.get("Available") == "True"
