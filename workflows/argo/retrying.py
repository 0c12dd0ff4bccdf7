"""What `argo retry` does to a Workflow of our shape, as a pure function over the object.

Failed steps lose their attempts and whatever followed them, so that the controller makes them anew; what contains them
runs again; the exit handler's nodes go, so that it runs again as well. Steps that succeeded stay. Where the tool of
Argo resets a group by chance, because it takes any one of a node's parents, here only what contains a failure is reset;
and a step that failed before it had a pod is tried again too.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agentic.cluster.resources import JsonObject
from workflows.argo.nodes import COMPLETED, GROUPS, ArgoNode, is_attempt, phase_of
from workflows.argo.packing import packed, unpacked
from workflows.errors import CommandError

ARCHIVING = "workflows.argoproj.io/workflow-archiving-status"
POD_NAMES = "workflows.argoproj.io/pod-name-format"

_FAILED = frozenset(["Failed", "Error"])


@dataclass(frozen=True)
class Restart:
    """A Workflow made ready to go on."""

    workflow: JsonObject
    """The object as it has to become."""
    pods: tuple[str, ...]
    """Pods that have to be gone before; the new attempts will be called the same."""


def restart(workflow: JsonObject, now: datetime) -> Restart:
    """The failed steps of a finished Workflow, ready to run again.

    Raises:
        CommandError: it has not failed.
        DocumentError: its nodes are in Argo's database.
    """
    name, phase = workflow["metadata"]["name"], phase_of(workflow)
    if phase not in _FAILED:
        raise CommandError(f"{name} is {phase}: only what failed is retried; to do more use resume --from STEP")
    opened = unpacked(workflow)
    nodes: Mapping[str, ArgoNode] = (opened.get("status") or {}).get("nodes") or {}
    last = {key for key, node in nodes.items() if _is_of_exit_handler(node, name)}
    failed = [key for key in nodes if key not in last and _is_to_be_retried(nodes, key)]
    gone = set(failed).union(*(_after(nodes, key) for key in failed)) - last
    again = set().union(*(_around(nodes, key) for key in failed)) - gone
    changed = copy.deepcopy(opened)
    changed["status"] = _fresh_status(changed["status"], now) | {
        "nodes": {
            key: _kept(node, gone, now if key in again else None)
            for key, node in changed["status"].get("nodes", {}).items()
            if key not in gone | last
        }
    }
    _reopen(changed)
    pods = [pod_name(workflow, nodes[key]) for key in (*gone, *last) if nodes[key]["type"] == "Pod"]
    return Restart(packed(changed), tuple(sorted(pods)))


def pod_name(workflow: JsonObject, node: ArgoNode) -> str:
    """How Argo calls the pod of a node."""
    name = workflow["metadata"]["name"]
    if (workflow["metadata"].get("annotations") or {}).get(POD_NAMES) == "v1":
        return str(node["id"])
    if node["name"] == name:
        return str(name)
    template = (node.get("templateRef") or {}).get("template") or node.get("templateName", "")
    prefix = f"{name}-{template}" if template else str(name)
    return f"{prefix[:242]}-{_fnv32a(node['name'])}"


def _fnv32a(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _is_of_exit_handler(node: ArgoNode, workflow: str) -> bool:
    return re.match(re.escape(workflow) + r"\.onExit(\W|$)", node["name"]) is not None


def _is_to_be_retried(nodes: Mapping[str, ArgoNode], key: str) -> bool:
    """A failure that nothing has made good: neither a later attempt nor a step that follows failures."""
    node = nodes[key]
    has_attempts = node["type"] == "Retry" and bool(node.get("children"))
    if node.get("phase") not in _FAILED or node["type"] in GROUPS or has_attempts:
        return False
    origin = _parents(nodes, key, "Retry")[:1] if is_attempt(node) else [key]
    later = set().union(*(_after(nodes, start) for start in origin))
    return not any(nodes[other].get("phase") == "Succeeded" for other in later)


def _after(nodes: Mapping[str, ArgoNode], key: str) -> set[str]:
    """All that hangs on a node: what it contains and what came after it."""
    seen: set[str] = set()
    waiting = [key]
    while waiting:
        children = [child for child in nodes[waiting.pop()].get("children") or [] if child in nodes]
        waiting += [child for child in children if child not in seen]
        seen.update(children)
    return seen


def _around(nodes: Mapping[str, ArgoNode], key: str) -> set[str]:
    """What contains a node: its step, its fan-out, its DAG, and what these are in."""
    inside = [*_parents(nodes, key, "Retry"), *_parents(nodes, key, "TaskGroup")]
    inside += [group for step in inside for group in _parents(nodes, step, "TaskGroup")]
    boundary = str(nodes[key].get("boundaryID", ""))
    if boundary in nodes:
        return {*inside, boundary, *_around(nodes, boundary)}
    return set(inside)


def _parents(nodes: Mapping[str, ArgoNode], key: str, kind: str) -> list[str]:
    return [other for other, node in nodes.items() if node["type"] == kind and key in (node.get("children") or [])]


def _kept(node: JsonObject, gone: set[str], restarted: datetime | None) -> JsonObject:
    kept = dict(node)
    for links in ("children", "outboundNodes"):
        if links in kept:
            kept[links] = [key for key in kept[links] or [] if key not in gone]
    if restarted is not None:
        kept.pop("message", None)
        phase = "Skipped" if node.get("phase") == "Skipped" else "Running"
        kept |= {"phase": phase, "startedAt": _written(restarted), "finishedAt": None}
    return kept


def _fresh_status(status: JsonObject, now: datetime) -> JsonObject:
    fresh = {key: value for key, value in status.items() if key not in {"phase", "message", "persistentVolumeClaims"}}
    conditions = [found for found in status.get("conditions") or [] if found.get("type") != "Completed"]
    conditions.append({"type": "Completed", "status": "False"})
    if "storedWorkflowTemplateSpec" in fresh:
        fresh["storedWorkflowTemplateSpec"] = _unstopped(fresh["storedWorkflowTemplateSpec"])
    return {**fresh, "phase": "", "startedAt": _written(now), "finishedAt": None, "conditions": conditions}


def _reopen(workflow: JsonObject) -> None:
    labels: dict[str, Any] = workflow["metadata"].get("labels") or {}
    for label in (COMPLETED, ARCHIVING):
        labels.pop(label, None)
    spec = _unstopped(workflow["spec"])
    if spec.get("activeDeadlineSeconds") == 0:  # how Argo ends one that is terminated
        del spec["activeDeadlineSeconds"]
    workflow["spec"] = spec


def _unstopped(spec: JsonObject) -> JsonObject:
    return {key: value for key, value in spec.items() if key != "shutdown"}


def _written(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
