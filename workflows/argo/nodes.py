"""What the status of a Workflow says of each step, in the terms of the local run. Pure.

Argo has a node for a step with retries, one for each attempt and one for a fan-out's group; people look for steps. Here
a step is one node with the name that it has locally, in its logs on the volume and in the progress files:
`build-images-0` is Argo's `build-images(0:0/4)`. Steps that have not begun are in the DAG and not in the status yet.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from agentic.cluster.resources import JsonObject
from workflows.argo.packing import unpacked
from workflows.local.scheduler import Node

COMPLETED = "workflows.argoproj.io/completed"
"""Label of a Workflow that Argo is done with, its exit handler included."""

GROUPS = frozenset(["DAG", "TaskGroup", "Steps", "StepGroup"])
"""Types of nodes that have others inside."""

NAMES = {"Error": "Errored", "": "Waiting"}
"""Argo's phases that the local run calls otherwise."""

_ITEM = re.compile(r"(?P<task>.+)\((?P<index>\d+):.*\)", re.DOTALL)

type ArgoNode = Mapping[str, Any]


def is_over(workflow: JsonObject) -> bool:
    """Whether it has ended, its exit handler included."""
    return bool((workflow["metadata"].get("labels") or {}).get(COMPLETED) == "true")


def phase_of(workflow: JsonObject) -> str:
    """Succeeded, Failed, Error, Running or Pending."""
    return str((workflow.get("status") or {}).get("phase") or "Pending")


def parameters_of(workflow: JsonObject) -> dict[str, str]:
    """The parameters that it was given."""
    given = (workflow["spec"].get("arguments") or {}).get("parameters") or []
    return {parameter["name"]: str(parameter.get("value", "")) for parameter in given}


def nodes_of(workflow: JsonObject) -> list[Node]:
    """The steps in the order of the DAG, the items of a fan-out behind it, the exit handler last."""
    found = steps_of(workflow)
    ordered: list[Node] = []
    for dag in dags_of(workflow):
        for task in dag:
            name = task["name"]
            items = sorted((key for key in found if is_part(key, name)), key=lambda key: int(key.rpartition("-")[2]))
            if name in found:
                ordered += [_read(workflow, found[key], key) for key in (name, *items)]
            else:
                ordered.append(Node(name, task["template"]))
    return ordered


def steps_of(workflow: JsonObject) -> dict[str, ArgoNode]:
    """Argo's node of each step that has begun, by the step's name; attempts are not among them."""
    prefix = re.compile(re.escape(workflow["metadata"]["name"]) + r"\.")
    steps: dict[str, ArgoNode] = {}
    for node in argo_nodes(workflow).values():
        start = prefix.match(node["name"])
        if start is None or node["type"] == "DAG" or is_attempt(node):
            continue
        name = node["name"][start.end() :]
        name = str(node.get("templateName", name)) if name == "onExit" else name
        item = _ITEM.fullmatch(name)
        steps[f"{item['task']}-{item['index']}" if item else name] = node
    return steps


def attempts_of(workflow: JsonObject, step: ArgoNode) -> list[ArgoNode]:
    """The pods of a step, the last one last."""
    nodes = argo_nodes(workflow)
    if step["type"] == "Retry":
        inside = [nodes[child] for child in step.get("children") or [] if child in nodes]
        return [node for node in inside if is_attempt(node)]
    return [step] if step["type"] == "Pod" else []


def argo_nodes(workflow: JsonObject) -> Mapping[str, ArgoNode]:
    """Argo's own nodes by id."""
    return (unpacked(workflow).get("status") or {}).get("nodes") or {}


def is_attempt(node: ArgoNode) -> bool:
    """Whether it is one try of a step that may be retried. Argo flags an exit handler's step as well as its tries."""
    return node["type"] != "Retry" and bool((node.get("nodeFlag") or {}).get("retried"))


def dags_of(workflow: JsonObject) -> Iterator[list[JsonObject]]:
    """The tasks of the entrypoint, and the exit handler, which is a step itself."""
    spec = workflow["spec"]
    templates = {template["name"]: template for template in spec["templates"]}
    yield templates[spec["entrypoint"]]["dag"]["tasks"]
    if spec.get("onExit"):
        yield [{"name": spec["onExit"], "template": spec["onExit"]}]


def is_part(name: str, task: str) -> bool:
    """Whether a step of this name is an item of the task's fan-out."""
    return re.fullmatch(re.escape(task) + r"-\d+", name) is not None


def _read(workflow: JsonObject, step: ArgoNode, name: str) -> Node:
    attempts = attempts_of(workflow, step)
    last = attempts[-1] if attempts else step
    phase = _phase(step, last, is_over=is_over(workflow))
    exit_code = (last.get("outputs") or {}).get("exitCode")
    return Node(
        name,
        str(step.get("templateName", "")),
        phase,
        len(attempts) or int(step["type"] == "TaskGroup"),
        _seconds(step.get("startedAt")),
        _seconds(step.get("finishedAt")) if phase != "Retrying" else None,
        " ".join(_message(step, last, phase).split()),
        int(exit_code) if exit_code is not None else None,
    )


def _phase(step: ArgoNode, last: ArgoNode, *, is_over: bool) -> str:
    """Argo leaves a step that was stopped between two attempts as running."""
    phase, last_phase = str(step.get("phase") or ""), str(last.get("phase") or "")
    if is_over and phase == "Running":
        return NAMES.get(last_phase, last_phase)
    if phase == "Running" and last_phase in {"Failed", "Error"}:
        return "Retrying"
    if phase == "Running" and last_phase == "Pending":
        return "Pending"
    return NAMES.get(phase, phase)


def _message(step: ArgoNode, last: ArgoNode, phase: str) -> str:
    """A failed attempt says why; of the step's own words, only those that add something are kept."""
    own, said = str(step.get("message") or ""), str(last.get("message") or "")
    match phase:
        case "Succeeded":
            return output_of(last, "summary") or output_of(step, "summary")
        case "Running":
            progress = str(last.get("progress") or "")
            return progress if progress.partition("/")[2] not in {"", "1"} else ""
        case "Failed" | "Errored" if said and own == "No more retries left":
            return f"{said}; no more retries"
        case "Skipped":
            return "not asked for"
        case "Retrying" if own:
            return f"{said}; {own[:1].lower()}{own[1:]}"
    return said or own


def output_of(node: ArgoNode, name: str) -> str:
    """An output parameter, or nothing."""
    given = (node.get("outputs") or {}).get("parameters") or []
    return next((str(parameter.get("value", "")) for parameter in given if parameter["name"] == name), "")


def _seconds(time: str | None) -> float | None:
    """Unix time of the API server's notation."""
    return datetime.fromisoformat(time).timestamp() if time else None
