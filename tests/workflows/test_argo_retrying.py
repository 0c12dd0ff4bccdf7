"""What a retry does to a finished Workflow; that Argo's own tool does the same is shown on the cluster for tests."""

import copy
import functools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from argo_documents import ArgoWorkflow, failed_fan_out
from hypothesis import given
from hypothesis import strategies as st

from workflows.argo.nodes import nodes_of, steps_of
from workflows.argo.packing import LARGEST_BYTES, packed, size_of, unpacked
from workflows.argo.retrying import pod_name, restart
from workflows.errors import CommandError, DocumentError
from workflows.pipeline import STEPS, build_workflow
from workflows.settings import load_settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@functools.cache
def compiled() -> dict[str, Any]:
    return build_workflow(load_settings("demo", [], {}), "demo", "first")


@pytest.fixture
def document() -> dict[str, Any]:
    return compiled()


def test_what_failed_and_what_followed_it_is_made_anew_and_the_rest_stays(document: dict[str, Any]) -> None:
    before = failed_fan_out(document).body
    kept = copy.deepcopy(before)
    after = restart(before, NOW)
    assert before == kept, "the object that was read stays as it is"
    left = after.workflow["status"]["nodes"]
    name = "agentic-rl-first"
    gone = set(before["status"]["nodes"]) - set(left)
    assert gone == {
        *(f"{name}.build-images(1:1/2)({index})" for index in (0, 1)),
        *(f"{name}.{step}" for step in ("launch-cluster", "train", "evaluate", "report")),
        *(f"{name}.onExit{rest}" for rest in ("", "(0)")),
    }
    running = {key for key, node in left.items() if node["phase"] == "Running"}
    assert running == {name, f"{name}.build-images", f"{name}.build-images(1:1/2)"}
    assert all(left[key]["startedAt"] == "2026-01-02T00:00:00Z" for key in running)
    assert left[f"{name}.download-data(0)"]["phase"] == "Failed", "what a later attempt made good stays"
    links = {child for node in left.values() for child in [*node["children"], *node.get("outboundNodes", [])]}
    assert links <= left.keys()


def test_the_workflow_counts_as_unfinished_then(document: dict[str, Any]) -> None:
    after = restart(failed_fan_out(document).body, NOW).workflow
    assert "workflows.argoproj.io/completed" not in after["metadata"]["labels"]
    assert "shutdown" not in after["spec"]
    status = after["status"]
    assert (status["phase"], status["finishedAt"], "message" in status) == ("", None, False)
    assert {"type": "Completed", "status": "False"} in status["conditions"]
    assert {"type": "PodRunning", "status": "False"} in status["conditions"]


def test_pods_that_will_be_made_again_have_to_go_first(document: dict[str, Any]) -> None:
    before = failed_fan_out(document).body
    nodes = before["status"]["nodes"]
    names = [f"agentic-rl-first.build-images(1:1/2)({index})" for index in (0, 1)]
    expected = {pod_name(before, nodes[name]) for name in [*names, "agentic-rl-first.onExit(0)"]}
    assert set(restart(before, NOW).pods) == expected


def test_pods_are_called_as_argo_calls_them(document: dict[str, Any]) -> None:
    """By FNV-1a of the node's name; that these are real pods' names is shown on the cluster."""
    body = ArgoWorkflow("hello", document).body
    node = {"name": "hello.a", "id": "hello-1", "templateName": "step"}
    assert pod_name(body, node) == "hello-step-2039115930"
    assert pod_name(body, {**node, "name": "hello"}) == "hello"
    body["metadata"]["annotations"] = {"workflows.argoproj.io/pod-name-format": "v1"}
    assert pod_name(body, node) == "hello-1"


@pytest.mark.parametrize("phase", ["Succeeded", "Running", ""])
def test_only_what_failed_is_retried(document: dict[str, Any], phase: str) -> None:
    with pytest.raises(CommandError, match="only what failed is retried"):
        restart(ArgoWorkflow("agentic-rl-first", document, phase).body, NOW)


def test_a_step_that_failed_before_it_had_a_pod_is_tried_again_too(document: dict[str, Any]) -> None:
    made = ArgoWorkflow("agentic-rl-first", document)
    last = made.step("preflight", 0, after=("agentic-rl-first",))
    broken = made.add("agentic-rl-first.download-data", "Skipped", "Error", message="no such parameter")
    made.nodes[last]["children"].append(broken)
    assert broken not in restart(made.body, NOW).workflow["status"]["nodes"]


def test_nodes_that_argo_compressed_are_read_and_compressed_again(document: dict[str, Any]) -> None:
    made = failed_fan_out(document)
    for index in range(4000):
        made.nodes["agentic-rl-first.preflight(0)"]["message"] += f"{index} something long that fills the object "
    for node in range(8):
        made.step(f"other-{node}", 0)
        made.nodes[f"agentic-rl-first.other-{node}"]["message"] = made.nodes["agentic-rl-first.preflight(0)"]["message"]
    assert size_of(made.body) > LARGEST_BYTES
    small = packed(made.body)
    assert size_of(small) < LARGEST_BYTES
    assert "nodes" not in small["status"]
    assert unpacked(small) == made.body
    after = restart(small, NOW).workflow
    assert size_of(after) < LARGEST_BYTES
    assert unpacked(after) == unpacked(restart(made.body, NOW).workflow)


def test_nodes_in_argos_database_are_refused_by_name(document: dict[str, Any]) -> None:
    body = failed_fan_out(document).body
    body["status"] |= {"nodes": None, "offloadNodeStatusVersion": "fnv:1"}
    with pytest.raises(DocumentError, match=r"set cluster\.argo_server"):
        restart(body, NOW)


@given(failing=st.sampled_from(STEPS), attempts=st.integers(1, 4), shards=st.integers(1, 4), data=st.data())
def test_a_restart_keeps_every_success_and_no_failure_that_was_final(
    failing: str, attempts: int, shards: int, data: st.DataObject
) -> None:
    made = ArgoWorkflow("agentic-rl-first", compiled())
    last: list[str] = ["agentic-rl-first"]
    is_broken = False
    for step in STEPS:
        if is_broken:
            last = [made.omitted(step, *last)]
            continue
        is_broken = step == failing
        codes = [75] * (attempts - 1) + [78 if is_broken else 0]
        items = [f"({index}:{index}/{shards})" for index in range(shards)] if step == "build-images" else [""]
        if items != [""]:
            group = made.add("agentic-rl-first.build-images", "TaskGroup", "Failed" if is_broken else "Succeeded")
            for before in last:
                made.nodes[before]["children"].append(group)
            last = [group]
        bad = data.draw(st.integers(0, len(items) - 1))
        last = [
            made.step(step, *(codes if index == bad else [0]), after=tuple(last), item=item)
            for index, item in enumerate(items)
        ]
    after = restart(made.body, NOW)
    left = steps_of(after.workflow)
    assert json.loads(json.dumps(after.workflow)) == after.workflow
    for node in nodes_of(made.body):
        if node.phase == "Succeeded":
            assert left[node.name]["phase"] == "Succeeded"
        if node.phase == "Omitted":
            assert node.name not in left
    assert not [node for node in left.values() if node["phase"] in {"Failed", "Error"}]
    assert any(node["phase"] == "Running" for node in left.values())
    with pytest.raises(CommandError):
        restart(after.workflow, NOW)
