"""What the local runner cannot interpret is refused by name, before anything starts."""

import copy
from typing import Any

import pytest
from workflow_documents import RETRY, leaf, task, workflow

from workflows.errors import DocumentError
from workflows.local.document import read_document, seconds_of

OUTPUT = "{{tasks.a.outputs.parameters.items}}"


def small(**spec: Any) -> dict[str, Any]:
    leaves = [leaf("a", outputs=["items"]), leaf("b", inputs=["x"], retryStrategy=RETRY)]
    tasks = [task("a"), task("b", depends="a", arguments={"x": OUTPUT})]
    return workflow(tasks, leaves, **spec)


def test_a_document_within_the_supported_part_is_read() -> None:
    document = read_document(small(parallelism=2, activeDeadlineSeconds=60, podGC={"strategy": "OnPodSuccess"}))
    assert set(document.templates) == {"a", "b", "main"}


def test_a_target_that_leaves_nothing_out_changes_nothing() -> None:
    document = small()
    document["spec"]["templates"][2]["dag"]["target"] = "a b"
    assert read_document(document).templates.keys() == {"a", "b", "main"}


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["spec", "hooks"], {}, "spec.hooks"),
        (["spec", "workflowTemplateRef"], {"name": "x"}, "spec.workflowTemplateRef"),
        (["spec", "templates", 0, "suspend"], {}, "spec.templates.0.suspend"),
        (["spec", "templates", 0, "memoize"], {}, "spec.templates.0.memoize"),
        (["spec", "templates", 0, "container", "livenessProbe"], {}, "container.livenessProbe"),
        (["spec", "templates", 0, "inputs", "artifacts"], [], "inputs.artifacts"),
        (["spec", "templates", 1, "retryStrategy", "limits"], "3", "retryStrategy.limits"),
        (["spec", "templates", 1, "retryStrategy", "retryPolicy"], "OnTransientError", "retryStrategy.retryPolicy"),
        (["spec", "templates", 2, "dag", "tasks", 0, "withSequence"], {"count": 2}, "tasks.0.withSequence"),
        (["spec", "templates", 2, "dag", "tasks", 0, "templateRef"], {}, "tasks.0.templateRef"),
        (["spec", "templates", 2, "dag", "target"], "a", "the target leaves out b"),
        (["kind"], "CronWorkflow", "kind"),
    ],
)
def test_what_is_not_interpreted_is_named(path: list[str | int], value: Any, named: str) -> None:
    document: Any = copy.deepcopy(small())
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(DocumentError) as error:
        read_document(document)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        (
            [task("a"), task("b", depends="a", arguments={"x": "{{tasks.a.outputs.parameters.none}}"})],
            "refers to nothing",
        ),
        ([task("a"), task("b", arguments={"x": "{{tasks.a.outputs.parameters.items}}"})], "refers to nothing"),
        ([task("a"), task("b", depends="c", arguments={"x": "1"})], "'c' is not known"),
        ([task("a", depends="b"), task("b", depends="a", arguments={"x": "1"})], "depends on itself"),
        ([task("a"), task("b")], "has no value"),
        ([task("a", arguments={"y": "1"})], "'y' is not an input"),
        ([task("a", template="z")], "no template is named 'z'"),
        ([task("a", when="{{workflow.parameters.none}} == 1")], "refers to nothing"),
        ([task("a", when="{{=1+1}} == 2")], "refers to nothing"),
        ([task("b", arguments={"x": "{{item}}"})], "refers to nothing"),
    ],
)
def test_a_reference_that_could_not_be_resolved_is_refused(tasks: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        read_document(workflow(tasks, [leaf("a", outputs=["items"]), leaf("b", inputs=["x"])]))


def test_an_exit_handler_that_is_not_there_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"spec\.onExit: no template is named 'tidy'"):
        read_document(small(onExit="tidy"))


def test_a_volume_outside_of_the_workspace_is_refused() -> None:
    mounts = {"volumeMounts": [{"name": "models", "mountPath": "/var/model"}]}
    with pytest.raises(DocumentError, match="models lies at /var/model, outside of /workspace"):
        read_document(workflow([task("a")], [leaf("a", container=mounts)]))


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("500ms", 0.5), ("1h30m", 5400), ("2s", 2)])
def test_durations_are_argos(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "fast", "3 s", "-1s", "5y"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        seconds_of(text)
