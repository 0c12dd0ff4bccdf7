"""The status of a Workflow in the terms and names of the local run."""

import re
from io import StringIO
from typing import Any

import pytest
from argo_documents import ArgoWorkflow, failed_fan_out
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workflows.argo.attempts import next_attempt, recorded_settings
from workflows.argo.following import exit_code, follow
from workflows.argo.nodes import is_over, nodes_of, phase_of
from workflows.errors import CommandError, SettingsError
from workflows.pipeline import STEPS, build_workflow, name_of_workflow
from workflows.request import RUN_ID, Request
from workflows.settings import load_settings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build_workflow(load_settings("demo", ["train.steps=12"], {}), "demo", "first")


def going_on(document: dict[str, Any]) -> ArgoWorkflow:
    made = ArgoWorkflow("agentic-rl-first", document, "Running")
    del made.body["metadata"]["labels"]["workflows.argoproj.io/completed"]
    return made


def test_steps_have_the_names_order_and_phases_of_the_local_run(document: dict[str, Any]) -> None:
    nodes = nodes_of(failed_fan_out(document).body)
    assert [(node.name, node.phase, node.attempt) for node in nodes] == [
        ("preflight", "Succeeded", 1),
        ("download-data", "Succeeded", 2),
        ("download-model", "Succeeded", 1),
        ("build-images", "Failed", 1),
        ("build-images-0", "Succeeded", 1),
        ("build-images-1", "Failed", 2),
        ("launch-cluster", "Omitted", 0),
        ("train", "Omitted", 0),
        ("evaluate", "Omitted", 0),
        ("report", "Omitted", 0),
        ("cleanup", "Succeeded", 1),
    ]
    by_name = {node.name: node for node in nodes}
    assert by_name["preflight"].message == "preflight is done"
    assert by_name["build-images-1"].message == "main: Error (exit code 78)"
    assert by_name["build-images-1"].exit_code == 78
    assert (by_name["preflight"].ended or 0) - (by_name["preflight"].started or 0) == 125


def test_steps_that_have_not_begun_wait(document: dict[str, Any]) -> None:
    nodes = nodes_of({**document, "status": {}})
    assert {node.name for node in nodes} == {*STEPS, "cleanup"}
    assert {node.phase for node in nodes} == {"Waiting"}
    assert phase_of(document) == "Pending"
    assert not is_over(document)


def test_between_two_attempts_a_step_is_retrying_and_says_why(document: dict[str, Any]) -> None:
    made = going_on(document)
    made.step("preflight", 75, phase="Running")
    made.nodes["agentic-rl-first.preflight"]["message"] = "Backoff for 30 seconds"
    (node,) = [node for node in nodes_of(made.body) if node.name == "preflight"]
    assert (node.phase, node.message) == ("Retrying", "main: Error (exit code 75); backoff for 30 seconds")
    assert node.ended is None


def test_a_step_that_was_stopped_has_failed_and_one_that_was_skipped_was_not_asked_for(
    document: dict[str, Any],
) -> None:
    """Argo itself leaves the former as running, and words the latter as an expression."""
    made = ArgoWorkflow("agentic-rl-first", document)
    made.step("train", 143, phase="Running")
    made.add("agentic-rl-first.preflight", "Skipped", "Skipped", message="when 'x != y' evaluated false")
    found = {node.name: (node.phase, node.message) for node in nodes_of(made.body)}
    assert found["train"] == ("Failed", "main: Error (exit code 143)")
    assert found["preflight"] == ("Skipped", "not asked for")


def test_a_pod_that_cannot_start_is_pending_with_its_reason(document: dict[str, Any]) -> None:
    made = going_on(document)
    pod = made.step("preflight", 0, phase="Running")
    made.nodes[pod] |= {"phase": "Pending", "message": "Unschedulable: 0/1 nodes are available"}
    (node,) = [node for node in nodes_of(made.body) if node.name == "preflight"]
    assert (node.phase, node.message) == ("Pending", "Unschedulable: 0/1 nodes are available")


class Played:
    """Fakes a Workflow that is followed: plays the given objects."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies = bodies

    async def follow(self, name: str) -> Any:
        for body in self.bodies:
            yield body


async def test_following_prints_each_change_once_with_the_local_names(document: dict[str, Any]) -> None:
    begun = going_on(document)
    pod = begun.step("preflight", 0, phase="Running")
    begun.nodes[pod] |= {"phase": "Running", "progress": "3/14"}
    done = failed_fan_out(document)
    screen = StringIO()
    held = {**document, "status": {"phase": "Pending", "message": "Waiting for rl/Mutex/runs-first lock"}}
    workflows: Any = Played(document, held, held, begun.body, begun.body, done.body)
    last = await follow(workflows, "agentic-rl-first", Console(file=screen, width=200))
    assert last is done.body
    waits, *said = screen.getvalue().splitlines()
    assert waits == "agentic-rl-first waits: Waiting for rl/Mutex/runs-first lock"
    lines = [line.split()[1:3] for line in said]
    assert lines[:2] == [["preflight", "Running"], ["preflight", "Succeeded"]]
    assert ["build-images-1", "Failed"] in lines
    assert lines[-1] == ["cleanup", "Succeeded"]


@pytest.mark.parametrize(
    ("codes", "said", "expected"),
    [
        ((75, 75), "", 75),
        ((75, 78), "", 78),
        ((1,), "", 78),
        ((137,), "", 75),
        ((143,), "", 75),
        ((137, 137), "OOMKilled (exit code 137)", 78),
        ((75,), "Pod was active on the node longer than the specified deadline", 75),
    ],
)
def test_the_exit_code_says_whether_trying_again_may_help_as_the_steps_own_retries_see_it(
    document: dict[str, Any], codes: tuple[int, ...], said: str, expected: int
) -> None:
    made = ArgoWorkflow("agentic-rl-first", document)
    pod = made.step("preflight", *codes)
    made.nodes[pod]["message"] = said or made.nodes[pod]["message"]
    assert exit_code(made.body) == expected


def test_a_workflow_that_argo_cannot_run_is_not_worth_another_try(document: dict[str, Any]) -> None:
    assert exit_code(ArgoWorkflow("agentic-rl-first", document, "Succeeded").body) == 0
    assert exit_code(ArgoWorkflow("agentic-rl-first", document, "Error").body) == 78
    assert exit_code(ArgoWorkflow("agentic-rl-first", document, "Failed").body) == 75, "stopped before it began"


def test_what_a_step_says_is_one_line(document: dict[str, Any]) -> None:
    made = ArgoWorkflow("agentic-rl-first", document)
    made.nodes[made.step("preflight", 1)]["message"] = "Error (exit code 1): Traceback\n  File x\nKeyError"
    assert "\n" not in next(node.message for node in nodes_of(made.body) if node.name == "preflight")


def test_the_next_attempt_is_the_same_document_from_another_step(document: dict[str, Any]) -> None:
    made = failed_fan_out(document)
    made.body["metadata"] |= {"labels": {**made.body["metadata"]["labels"], "agentic-rl/attempt": "2"}}
    again = next_attempt([made.body], "first", "train", ["cluster.namespace=default"])
    assert again["metadata"]["name"] == "agentic-rl-first-attempt-3"
    assert again["metadata"]["labels"] == {"agentic-rl/run": "first", "agentic-rl/attempt": "3"}
    parameters = {one["name"]: one["value"] for one in again["spec"]["arguments"]["parameters"]}
    assert parameters["start_from"] == "train"
    assert "shutdown" not in again["spec"]
    assert again["spec"]["templates"] == document["spec"]["templates"]


def test_changed_settings_are_put_on_top_of_the_recorded_ones(document: dict[str, Any]) -> None:
    made = failed_fan_out(document)
    again = next_attempt([made.body], "first", "train", ["train.learning_rate=0.001", "cluster.head.memory=300Gi"])
    settings = recorded_settings(again)
    assert (settings.train.steps, settings.train.learning_rate) == (12, 0.001)
    train = next(template for template in again["spec"]["templates"] if template["name"] == "train")
    assert train["metadata"]["labels"]["agentic-rl/run"] == "first"
    assert settings.cluster.head.memory == "300Gi"
    with pytest.raises(SettingsError, match="did you mean"):
        next_attempt([made.body], "first", "train", ["train.stpes=3"])


def test_a_run_that_goes_on_is_not_begun_beside_itself(document: dict[str, Any]) -> None:
    made = going_on(document)
    with pytest.raises(CommandError, match="still going on"):
        next_attempt([made.body], "first", "train", [])


@given(st.lists(st.from_regex(RUN_ID, fullmatch=True), min_size=1, max_size=4), st.integers(1, 999))
def test_workflows_have_names_of_their_own_that_fit_into_a_label_of_their_pods(run_ids: list[str], last: int) -> None:
    """Also of runs that begin alike: their ends are what long names would lose."""
    asked = {
        (run_id, attempt)
        for base in run_ids
        for run_id in (base, f"{base[:51]}0", f"{base[:51]}1")
        for attempt in (1, 2, last)
        if is_free(run_id)
    }
    names = [name_of_workflow(run_id, attempt) for run_id, attempt in asked]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)


def is_free(run_id: str) -> bool:
    """Whether a run may be called so."""
    try:
        return Request("submit", None, run_id, None, (), ()).make_run_id() == run_id
    except CommandError:
        return False


def test_a_run_is_not_called_like_an_attempt_at_another_one() -> None:
    assert name_of_workflow("first", 2) == "agentic-rl-first-attempt-2"
    with pytest.raises(CommandError, match="an attempt at another run is called so"):
        Request("submit", None, "first-attempt-2", None, (), ()).make_run_id()
