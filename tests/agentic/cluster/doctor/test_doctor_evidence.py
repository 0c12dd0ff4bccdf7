"""What is gathered of a run: all that is its own, nothing of another's, and nothing that was made good."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.doctor.evidence import about, gather_evidence, without_overcome_builds
from agentic.cluster.errors import ForbiddenError
from agentic.cluster.resources import EVENTS, JOBS, PODS, WORKFLOWS
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.troubles import find_troubles


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def client(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(FixedCredentials(Access(server.address))) as client:
        yield client


def workflow(name: str, phase: str = "Failed", made: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    metadata = {"name": name, "creationTimestamp": made}
    templates = [{"name": "train"}, {"name": "on-exit"}, {"name": "pipeline"}]
    return {"kind": "Workflow", "metadata": metadata, "spec": {"templates": templates}, "status": {"phase": phase}}


def event(name: str) -> dict[str, Any]:
    return {"involvedObject": {"kind": "Pod", "name": name}, "reason": "Evicted", "message": "low on memory"}


@pytest.mark.parametrize("name", ["agentic-rl-exp-train-123", "agentic-rl-exp-on-exit-9", "agentic-rl-exp"])
def test_events_of_pods_that_are_gone_are_the_runs_own(name: str) -> None:
    assert about([event(name)], [workflow("agentic-rl-exp")], [workflow("agentic-rl-exp")]) == [event(name)]


@pytest.mark.parametrize("name", ["agentic-rl-exp-2-train-123", "agentic-rl-exp-2", "agentic-rl-exp-shop-1", "other"])
def test_events_of_a_run_whose_name_begins_alike_are_another_runs(name: str) -> None:
    assert about([event(name)], [workflow("agentic-rl-exp")], [workflow("agentic-rl-exp")]) == []
    assert about([event(name)], [], []) == []


def build(name: str, ended: str, made: str = "2026-01-02T00:00:00Z", image: str = "0123") -> dict[str, Any]:
    conditions = [{"type": ended, "status": "True", "reason": "BackoffLimitExceeded"}]
    labels = {"agentic-rl/image": image}
    metadata = {"name": name, "creationTimestamp": made, "labels": labels}
    return {"kind": "Job", "metadata": metadata, "status": {"conditions": conditions}}


def left(workflows: list[dict[str, Any]], *jobs: dict[str, Any]) -> list[str]:
    return [job["metadata"]["name"] for job in without_overcome_builds(workflows, jobs, [])[0]]


def test_a_build_that_a_later_one_made_good_is_no_trouble() -> None:
    failed, done = build("a-1", "Failed"), build("a-2", "Complete")
    assert left([workflow("w")], failed, done, build("b-1", "Failed", image="4567")) == ["b-1"]
    assert left([], failed) == ["a-1"]


def test_builds_of_an_earlier_attempt_and_of_a_run_that_went_well_are_no_trouble() -> None:
    failed = build("a-1", "Failed")
    assert left([workflow("w"), workflow("w-2", made="2026-01-03T00:00:00Z")], failed) == []
    assert left([workflow("w", "Succeeded")], failed) == []
    assert left([workflow("w")], failed) == ["a-1"]


async def test_a_run_that_was_built_with_a_second_try_shows_nothing_of_the_first(client: KubeClient) -> None:
    labels = {"agentic-rl/run": "r", "agentic-rl/image": "0123"}
    await client.create(WORKFLOWS, {**WORKFLOWS.head("w", labels={"agentic-rl/run": "r"}), "spec": {}})
    for name, ended in (("a-1", "Failed"), ("a-2", "Complete")):
        await client.create(JOBS, {**JOBS.head(name, labels=labels), "spec": {}})
        condition = {"type": ended, "status": "True", "reason": "DeadlineExceeded", "message": "longer"}
        await client.patch(JOBS, name, {"status": {"conditions": [condition]}}, subresource="status")
    said = {**event("a-1"), "involvedObject": {"kind": "Job", "name": "a-1"}, "reason": "DeadlineExceeded"}
    await client.create(EVENTS, {**EVENTS.head("e"), **said})
    evidence = await gather_evidence(client, ClusterSettings(), "r")
    assert [body["metadata"]["name"] for body in evidence.objects] == ["w"]
    assert find_troubles(evidence) == []


async def test_sandboxes_of_another_namespace_are_looked_at_too(client: KubeClient) -> None:
    labels = {"agentic-rl/run": "r"}
    await client.create(WORKFLOWS, {**WORKFLOWS.head("w", labels=labels), "spec": {}})
    box = {**PODS.head("box-1", labels=labels), "spec": {}}
    await client.create(PODS, box, namespace="boxes")
    status = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
    await client.patch(PODS, "box-1", {"status": status}, namespace="boxes", subresource="status")
    said = {**event("box-1"), "reason": "Failed", "message": 'Failed to pull image "r.example/a:1": r: not found'}
    await client.create(EVENTS, {**EVENTS.head("e"), **said}, namespace="boxes")
    assert find_troubles(await gather_evidence(client, ClusterSettings(), "r")) == []
    (trouble,) = find_troubles(await gather_evidence(client, ClusterSettings(), "r", "boxes"))
    assert (trouble.name, trouble.where) == ("image-missing", "pod box-1")


async def test_an_account_that_may_see_nothing_is_not_told_that_there_is_nothing(
    server: KubeApiServer, client: KubeClient
) -> None:
    server.faults.append(
        Fault("GET", ".*", 403, times=99, message='User "me" cannot list resource "pods" in API group')
    )
    with pytest.raises(ForbiddenError, match="run r: the account may list none of workflows, rayclusters, jobs, pods"):
        await gather_evidence(client, ClusterSettings(), "r")
