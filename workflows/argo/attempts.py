"""The Workflows of one run: which there are, and the next attempt at the same run folder."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentic.cluster.labels import selector_of_run
from agentic.cluster.resources import JsonObject, name_of
from workflows.argo.api import Workflows
from workflows.argo.nodes import is_over, parameters_of
from workflows.errors import CommandError, SettingsError
from workflows.pipeline import ATTEMPT_LABEL, SECTIONS, STEPS, build_workflow, name_of_workflow
from workflows.settings import Settings, amend

OWN = ("app.kubernetes.io/part-of", "agentic-rl/")
"""Beginnings of the labels that are ours and not Argo's."""


async def attempts_of_run(workflows: Workflows, run_id: str) -> list[JsonObject]:
    """Its Workflows, the newest last.

    Raises:
        CommandError: it has none.
    """
    found = await workflows.list(selector_of_run(run_id))
    if not found:
        raise CommandError(
            f"the cluster has no Workflow of run {run_id}: the objects go some days after their end, the folder "
            f"stays; go on with it by submit --run-id {run_id} --start-from STEP"
        )
    return found


def next_attempt(before: Sequence[JsonObject], run_id: str, start_from: str, changes: Sequence[str]) -> JsonObject:
    """A Workflow of the same run that begins at a step. Without changes it is the last one's very document.

    Raises:
        CommandError: the last one still runs.
        SettingsError: the changes do not fit, or it was made by a version with other settings.
    """
    last = before[-1]
    if not is_over(last):
        raise CommandError(f"{name_of(last)} is still going on: wait for it, or end it by stop {run_id}")
    number = 1 + max(number_of(workflow) for workflow in before)
    settings = recorded_settings(last, changes)
    if settings != recorded_settings(last):
        return build_workflow(settings, parameters_of(last).get("profile", ""), run_id, start_from, number)
    spec = {key: value for key, value in copy.deepcopy(last["spec"]).items() if key != "shutdown"}
    for parameter in spec["arguments"]["parameters"]:
        if parameter["name"] == "start_from":
            parameter["value"] = start_from
    metadata = last["metadata"]
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key.startswith(OWN)}
    titles = ("workflows.argoproj.io/title", "workflows.argoproj.io/description")
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key in titles}
    return {
        "apiVersion": last["apiVersion"],
        "kind": last["kind"],
        "metadata": {
            "name": name_of_workflow(run_id, number),
            "namespace": metadata["namespace"],
            "labels": {**labels, ATTEMPT_LABEL: str(number)},
            "annotations": annotations,
        },
        "spec": spec,
    }


def number_of(workflow: JsonObject) -> int:
    """Which attempt it is; one that Argo resubmitted carries the number of the one before it."""
    text = (workflow["metadata"].get("labels") or {}).get(ATTEMPT_LABEL, "1")
    return int(text) if text.isdigit() else 1


def recorded_settings(workflow: JsonObject, changes: Sequence[str] = ()) -> Settings:
    """The settings that a Workflow was made from, as its parameters hold them, with some changed.

    Raises:
        SettingsError: they are of a version with other settings, or the changes do not fit.
    """
    return amend(_sections(workflow), changes)


def _sections(workflow: JsonObject) -> Mapping[str, Any]:
    parameters = parameters_of(workflow)
    return {name: _read(workflow, name, parameters[name]) for name in SECTIONS if name in parameters}


def _read(workflow: JsonObject, name: str, text: str) -> Any:
    """People may give parameters anew when they retry or resubmit."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise SettingsError(f"parameter {name} of workflow {name_of(workflow)} is not JSON: {error}") from error


def require_step(name: str | None) -> str:
    """A step that a run may begin at.

    Raises:
        CommandError: there is none of that name.
    """
    if name not in STEPS:
        raise CommandError(f"name the step to go on from, as --from STEP: one of {', '.join(STEPS)}")
    return name
