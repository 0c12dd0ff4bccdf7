"""What `explain` leaves aside of what a cluster still tells of a run, and what nobody tells it. Pure."""

from typing import Any

from argo_documents import ArgoWorkflow

from agentic.cluster.troubles import Evidence, find_troubles
from workflows.argo.nodes import argo_nodes
from workflows.argo.retrying import pod_name
from workflows.doctoring import about_newest, asleep
from workflows.pipeline import build_workflow
from workflows.settings import load_settings

NOW_SECONDS = 1767261720.0
"""Two minutes after the Workflow of these tests began."""


def failed() -> ArgoWorkflow:
    document = build_workflow(load_settings("demo", [], {}), "demo", "first")
    made = ArgoWorkflow("agentic-rl-first", document)
    made.step("train", 137)
    return made


def told(reason: str, pod: str, uid: str) -> dict[str, Any]:
    """Of the scheduler."""
    about = {"kind": "Pod", "name": pod, "uid": uid}
    messages = {"FailedScheduling": "0/1 nodes are available: 1 Insufficient cpu.", "Scheduled": "assigned"}
    return {"reason": reason, "message": messages[reason], "involvedObject": about}


def named(made: ArgoWorkflow, *events: dict[str, Any]) -> list[str]:
    evidence = about_newest(Evidence(events=events, objects=[made.body]))
    return [trouble.name for trouble in find_troubles(Evidence(events=evidence.events))]


def test_a_pod_that_is_gone_and_never_got_a_node_waited_for_room() -> None:
    assert named(failed(), told("FailedScheduling", "sandbox-1", "a")) == ["no-room-for-cpu"]


def test_a_pod_that_is_gone_and_had_a_node_waited_for_nothing_in_the_end() -> None:
    """By the scheduler's own word: its events stay for an hour."""
    assert named(failed(), told("FailedScheduling", "sandbox-1", "a"), told("Scheduled", "sandbox-1", "a")) == []


def test_a_pod_that_was_made_again_under_its_name_may_wait_anew() -> None:
    events = [told("Scheduled", "sandbox-1", "a"), told("FailedScheduling", "sandbox-1", "b")]
    assert named(failed(), *events) == ["no-room-for-cpu"]


def test_the_workflow_knows_that_a_pod_of_its_steps_had_a_node_when_the_scheduler_is_not_heard_any_more() -> None:
    made = failed()
    node = argo_nodes(made.body)["agentic-rl-first.train(0)"]
    waited = told("FailedScheduling", pod_name(made.body, node), "a")
    assert named(made, waited) == ["no-room-for-cpu"]
    made.nodes["agentic-rl-first.train(0)"]["hostNodeName"] = "node-1"
    assert named(made, waited) == []


def waiting(**more: Any) -> ArgoWorkflow:
    """Its training is to begin again."""
    made = failed()
    made.nodes["agentic-rl-first.train(0)"] |= {"phase": "Pending", "displayName": "train(0)", **more}
    return made


def test_a_step_that_waits_for_a_pod_that_is_nowhere_is_named_with_what_wakes_the_controller() -> None:
    (trouble,) = asleep(waiting().body, [], NOW_SECONDS)
    assert trouble.name == "controller-silent"
    assert "train(0) has waited for 120 s for a pod that is not there" in trouble.message
    woken = "kubectl annotate -n rl workflow agentic-rl-first agentic-rl/woken=1767261720 --overwrite"
    assert trouble.remedy.endswith(woken)


def test_a_step_that_waits_for_a_lock_or_for_its_pod_to_start_or_not_for_long_is_not_named() -> None:
    assert asleep(waiting(synchronizationStatus={"waiting": "rl/Mutex/runs-first"}).body, [], NOW_SECONDS) == []
    assert asleep(waiting(startedAt="2026-01-01T10:01:30Z").body, [], NOW_SECONDS) == []
    assert asleep(waiting(startedAt=None).body, [], NOW_SECONDS) == []
    made = waiting()
    pod = {"metadata": {"name": pod_name(made.body, argo_nodes(made.body)["agentic-rl-first.train(0)"])}}
    assert asleep(made.body, [pod], NOW_SECONDS) == []
