"""What claims' states mean, in the words of their controllers."""

from typing import Any

import pytest

from agentic.sandbox.errors import SandboxStartError
from agentic.sandbox.kube.claims import (
    ClaimState,
    judge_agent_claim,
    judge_in_place_update,
    judge_kruise_claim,
    only_claimed,
)
from agentic.sandbox.kube.kruise import has_image


def claim(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "status": status}


def ready(status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message}]}


def test_a_completed_claim_without_a_sandbox_is_a_failure() -> None:
    verdict = judge_kruise_claim(
        claim(phase="Completed", claimedReplicas=0, message="Timeout reached after 60s, claimed 0/1 sandboxes")
    )
    assert verdict.state is ClaimState.FAILED
    assert verdict.reason == "its claim got no sandbox (Timeout reached after 60s, claimed 0/1 sandboxes)"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, ClaimState.WAITING),
        ({"phase": "Claiming", "claimedReplicas": 1}, ClaimState.WAITING),
        ({"phase": "Completed", "claimedReplicas": 1}, ClaimState.BOUND),
        ({"phase": "Completed", "message": "SandboxSet pool not found"}, ClaimState.FAILED),
    ],
)
def test_a_kruise_claim_counts_once_it_is_completed(status: dict[str, Any], state: ClaimState) -> None:
    assert judge_kruise_claim(claim(**status)).state is state


def test_only_a_claim_completed_for_want_of_its_set_may_fare_better_when_made_again() -> None:
    def completed(reason: str, message: str) -> dict[str, Any]:
        conditions = [{"type": "Completed", "status": "True", "reason": reason, "message": message}]
        return claim(phase="Completed", message=message, conditions=conditions)

    unseen = completed("SandboxSetNotFound", "SandboxSet pool not found")
    timed_out = completed("TimeoutReached", "Timeout reached after 60s, claimed 0/1 sandboxes")
    assert judge_kruise_claim(unseen).may_pass
    assert not any(judge_kruise_claim(one).may_pass for one in (timed_out, claim(phase="Claiming"), None))


def test_a_deleted_claim_is_a_failure() -> None:
    assert judge_kruise_claim(None).reason == judge_agent_claim(None).reason == "its claim was deleted"


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ({}, ClaimState.WAITING, "its claim is not answered"),
        (
            ready("False", "WarmPoolNotFound", 'SandboxWarmPool "p" not found'),
            ClaimState.WAITING,
            "no sandbox is ready",
        ),
        (ready("False", "AdoptionPending"), ClaimState.WAITING, "no sandbox is ready (AdoptionPending)"),
        (ready("False", "SandboxMissing", "Sandbox does not exist"), ClaimState.WAITING, "no sandbox is ready"),
        (
            ready("False", "ClaimExpired", "Claim expired. Sandbox cleanup initiated."),
            ClaimState.FAILED,
            "its claim has expired (ClaimExpired: Claim expired. Sandbox cleanup initiated.)",
        ),
        ({**ready("True", "DependenciesReady"), "sandbox": {"name": "s"}}, ClaimState.BOUND, ""),
        (ready("True", "DependenciesReady"), ClaimState.WAITING, "no sandbox is ready"),
        (
            {"conditions": [{"type": "Finished", "status": "True", "reason": "PodFailed", "message": ""}]},
            ClaimState.FAILED,
            "its pod has ended (PodFailed)",
        ),
    ],
)
def test_an_agent_sandbox_claim_follows_the_ready_condition(
    status: dict[str, Any], state: ClaimState, reason: str
) -> None:
    verdict = judge_agent_claim(claim(**status))
    assert verdict.state is state
    assert verdict.reason.startswith(reason)


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_claim_with_any_other_number_of_sandboxes_than_one_is_not_used(count: int) -> None:
    found = [{"metadata": {"name": f"s{number}"}} for number in range(count)]
    with pytest.raises(SandboxStartError, match=f"claim c has {count} sandboxes"):
        only_claimed(claim(), found)


@pytest.mark.parametrize(
    "other",
    [
        {"metadata": {"name": "killed", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"name": "failed"}, "status": {"phase": "Failed"}},
        {"metadata": {"name": "of-an-earlier-claim", "annotations": {"agents.kruise.io/owner": "u0"}}},
    ],
    ids=lambda other: str(other["metadata"]["name"]),
)
def test_a_sandbox_that_a_claim_got_in_vain_stands_in_no_ones_way(other: dict[str, Any]) -> None:
    body = claim()
    body["metadata"]["uid"] = "u1"
    ours = {"metadata": {"name": "ours", "annotations": {"agents.kruise.io/owner": "u1"}}, "status": {}}
    assert only_claimed(body, [other, ours]) == ours


def test_an_image_that_does_not_start_in_place_is_a_failure() -> None:
    status = ready("False", "StartContainerFailed", "container sandbox failed to start: ErrImagePull")
    verdict = judge_in_place_update({"metadata": {"generation": 2}, "status": status}, "i:1")
    assert verdict.state is ClaimState.FAILED
    assert verdict.reason.startswith("image i:1 does not start (StartContainerFailed: container sandbox failed")


def test_an_old_ready_condition_says_nothing_about_the_new_image() -> None:
    body = {"metadata": {"generation": 2}, "status": {**ready("True", "PodReady"), "observedGeneration": 1}}
    assert judge_in_place_update(body, "i:1").state is ClaimState.WAITING


def pod_with(image: str, running: str) -> dict[str, Any]:
    statuses = [{"name": "sandbox", "image": running}]
    return {"spec": {"containers": [{"name": "sandbox", "image": image}]}, "status": {"containerStatuses": statuses}}


BASE = "agentic-rl/sandbox:0.1.0"
OTHER_NAMES = [
    ("python:3.12", "docker.io/library/python:3.12"),
    ("library/python:3.12", "docker.io/library/python:3.12"),
    ("docker.io/python:3.12", "docker.io/library/python:3.12"),
    ("index.docker.io/foo/bar:1", "docker.io/foo/bar:1"),
    ("docker.io/foo/bar", "docker.io/foo/bar:latest"),
    ("localhost:5000/bar", "localhost:5000/bar:latest"),
    ("r.io/x:v1@sha256:aa", "r.io/x@sha256:aa"),
    ("r.io/x:1", "r.io/x:another-tag-of-the-same-content"),
    ("r.io/x:1", "sha256:0123"),
    ("r.io/x:1", ""),
]


@pytest.mark.parametrize(("asked", "running"), OTHER_NAMES)
def test_an_image_taken_in_place_is_known_by_whatever_name_its_node_has_for_it(asked: str, running: str) -> None:
    assert has_image(pod_with(asked, running), asked, BASE)


@pytest.mark.parametrize(
    "mirrored", ["mirror.corp/r.io/team/x:1", "mirror.corp/team/x:1", "m.corp/cache/r.io/team/x:1"]
)
def test_an_image_by_way_of_a_mirror_is_the_same(mirrored: str) -> None:
    assert has_image(pod_with(mirrored, mirrored), "r.io/team/x:1", BASE)


@pytest.mark.parametrize(
    ("given", "running"),
    [
        (BASE, BASE),
        ("r.io/team/x:1", BASE),
        ("r.io/team/x:1", f"docker.io/{BASE}"),
        ("r.io/team/x:2", "r.io/team/x:1"),
        ("r.io/team/y:1", "r.io/team/x:1"),
        ("r.io/team/xx:1", "r.io/team/xx:1"),
    ],
)
def test_a_pod_that_has_another_image_or_runs_the_one_before_still_is_waited_for(given: str, running: str) -> None:
    assert not has_image(pod_with(given, running), "r.io/team/x:1", BASE)
