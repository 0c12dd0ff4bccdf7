"""Builds by Jobs, against the API server in memory and a Job controller on a script."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kube_api import KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    JsonObject,
    name_of,
)
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.watching import Watcher
from agentic.images import job_builder
from agentic.images.buildctl import BuildOrder
from agentic.images.errors import BuilderRefusedError, BuilderUnavailableError
from agentic.images.job_builder import JobBuilder, how_ended, job_stem
from agentic.images.reference import Reference
from agentic.images.settings import ImageSettings

CLUSTER = ClusterSettings(namespace="rl")
ORDER = BuildOrder("0123", "task-one", (Reference.parse("r.example/t/one:latest"),), Path("/workspace/datasets/d/one"))
STEM = job_stem("run-1", "shard-0", "0123", "task-one")
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "u"}

Ending = tuple[str, JsonObject | None]
"""Of a Job: its condition's type and reason, and the status of its pod, if there is one left."""
DONE: Ending = ("Complete", {"phase": "Succeeded"})


def failed(words: str, **status: Any) -> Ending:
    terminated = {"exitCode": 1, "reason": "Error", "message": words}
    state = {"containerStatuses": [{"name": "build", "state": {"terminated": terminated}}]}
    return "Failed", {"phase": "Failed", **state, **status}


def is_check(job: JsonObject) -> bool:
    return "debug" in job["spec"]["template"]["spec"]["containers"][0]["command"]


async def play_controller(client: KubeClient, script: Callable[[JsonObject], Ending | None]) -> None:
    """End each Job as the script says, once; None leaves it running."""
    seen: set[str] = set()
    async with Watcher(client, JOBS) as jobs:
        while True:
            found = await jobs.wait_until(
                lambda objects: [job for job in objects.values() if job["metadata"]["uid"] not in seen] or None,
                timeout_seconds=60,
            )
            for job in found:
                seen.add(job["metadata"]["uid"])
                ending = script(job)
                if ending is not None:
                    await end(client, job, ending)


async def end(client: KubeClient, job: JsonObject, ending: Ending) -> None:
    kind, status = ending
    if status is not None:
        labels = {**job["spec"]["template"]["metadata"]["labels"], "job-name": name_of(job)}
        pod = {**PODS.head(f"{name_of(job)}-pod", labels=labels), "spec": {}}
        await client.create(PODS, pod)
        await client.patch(PODS, name_of(pod), {"status": status}, subresource="status")
    condition = {"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "too many"}
    await client.patch(JOBS, name_of(job), {"status": {"conditions": [condition]}}, subresource="status")


@asynccontextmanager
async def rig(script: Callable[[JsonObject], Ending | None], **settings: Any) -> AsyncIterator[tuple[Any, KubeClient]]:
    chosen = ImageSettings(**{"buildkit_address": "tcp://b:1", "buildkit_start_seconds": 20, **settings})
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(KubeApiServer())
        credentials = FixedCredentials(Access(server.address))
        client = await stack.enter_async_context(KubeClient(credentials, namespace="rl"))
        playing = asyncio.create_task(play_controller(client, script))
        builder = JobBuilder(client, CLUSTER, chosen, "run-1", "shard-0", owner=OWNER, look_seconds=0.2)
        yield await stack.enter_async_context(builder), client
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def test_an_image_is_one_job_that_people_find_by_its_label_and_that_goes_with_the_workflow() -> None:
    async with rig(lambda job: DONE) as (builder, client):
        await builder.prepare()
        assert await builder.build(ORDER) is None
        jobs = (await client.list(JOBS, labels="type=image-build,agentic-rl/run=run-1")).items
        job = next(job for job in jobs if not is_check(job))
        assert name_of(job) == f"{STEM}-1"
        assert job["metadata"]["ownerReferences"] == [OWNER]
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert container["image"] == CLUSTER.steps_image
        assert container["command"][:2] == ["buildctl", "--addr=tcp://b:1"]
        assert "build" in container["command"]


async def test_buildkit_of_the_namespace_is_made_unless_another_one_is_named() -> None:
    async with rig(lambda job: DONE, buildkit_address=None) as (builder, client):
        await asyncio.gather(builder.prepare(), builder.prepare())
        made = [len((await client.list(kind)).items) for kind in (DEPLOYMENTS, SERVICES, NETWORK_POLICIES)]
        assert made == [1, 1, 1]
        checks = (await client.list(JOBS)).items
        assert len(checks) == 1, "it is looked at once, from a pod like those that build"
        assert "--addr=tcp://buildkitd:1234" in checks[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    async with rig(lambda job: DONE) as (builder, client):
        await builder.prepare()
        assert (await client.list(DEPLOYMENTS)).items == ()


@pytest.mark.parametrize(
    ("ending", "said", "may_pass"),
    [
        (failed("error: failed to solve: no such stage\n"), "failed to solve: no such stage", False),
        (failed("error: 503 Service Unavailable"), "503 Service Unavailable", True),
        (failed("", reason="Evicted", message="low on memory"), "Evicted: low on memory", True),
        (failed("", containerStatuses=[{"state": {"terminated": {"reason": "OOMKilled"}}}]), "OOMKilled", True),
    ],
)
async def test_a_build_that_failed_says_why_and_whether_it_may_pass(ending: Ending, said: str, may_pass: bool) -> None:
    async with rig(lambda job: ending) as (builder, _):
        failure = await builder.build(ORDER)
        assert said in failure.reason
        assert failure.may_pass is may_pass


async def test_a_build_whose_pod_and_job_were_deleted_may_pass() -> None:
    async with rig(lambda job: None) as (builder, client):
        building = asyncio.create_task(builder.build(ORDER))
        name = f"{STEM}-1"
        async with Watcher(client, JOBS) as jobs:
            await jobs.wait_for(name, lambda job: job, timeout_seconds=10)
        await client.delete(JOBS, name)
        failure = await building
        assert "its Job was deleted" in failure.reason
        assert failure.may_pass


async def test_a_job_that_a_killed_caller_left_running_is_waited_for_and_one_that_ended_says_nothing() -> None:
    endings: dict[str, Ending] = {"1": failed("error: yesterday's trouble")}
    async with rig(lambda job: endings.get(name_of(job).rpartition("-")[2])) as (builder, client):
        assert (await builder.build(ORDER)).reason == "yesterday's trouble"
        killed = asyncio.create_task(builder.build(ORDER))
        second = f"{STEM}-2"
        async with Watcher(client, JOBS) as jobs:
            job = await jobs.wait_for(second, lambda job: job, timeout_seconds=10)
            killed.cancel()
            settings = ImageSettings(buildkit_address="tcp://b:1")
            async with JobBuilder(client, CLUSTER, settings, "run-1", "shard-0") as heir:
                building = asyncio.create_task(heir.build(ORDER))
                await asyncio.sleep(0.1)
                assert not building.done()
                await end(client, job, DONE)
                assert await building is None
        assert len((await client.list(JOBS)).items) == 2, "no third one was started"


async def test_buildkit_that_no_pod_reaches_is_told_with_the_way_there() -> None:
    refused = failed('error: failed to list workers: Unavailable: connection error: "dial tcp: connection refused"')
    async with rig(lambda job: refused, buildkit_start_seconds=0.01) as (builder, _):
        with pytest.raises(BuilderUnavailableError, match=r"tcp://b:1 does not answer pods of rl: .*network policies"):
            await builder.prepare()


UNREACHED = failed('error: failed to list workers: Unavailable: connection error: "dial tcp: connection refused"')
PRIVILEGED = (
    'pods "buildkitd-1" is forbidden: violates PodSecurity "baseline:latest": privileged (container "buildkitd")'
)


@pytest.mark.parametrize(
    ("condition", "error", "name"),
    [
        (("ReplicaFailure", "FailedCreate", PRIVILEGED), BuilderRefusedError, "admission-refused"),
        (("ReplicaFailure", "FailedCreate", "exceeded quota: q, requested: cpu=4"), BuilderUnavailableError, "quota"),
    ],
)
async def test_a_buildkit_that_does_not_start_is_told_by_what_keeps_it(
    condition: tuple[str, str, str], error: type[Exception], name: str
) -> None:
    kind, reason, message = condition
    async with rig(lambda job: UNREACHED, buildkit_address=None, buildkit_start_seconds=0.5) as (builder, client):
        preparing = asyncio.create_task(builder.prepare())
        async with Watcher(client, DEPLOYMENTS) as deployments:
            await deployments.wait_for("buildkitd", lambda body: body, timeout_seconds=10)
        status = {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}
        await client.patch(DEPLOYMENTS, "buildkitd", {"status": status}, subresource="status")
        with pytest.raises(error, match=rf"BuildKit does not start in rl: .*{name}"):
            await preparing


async def test_buildkit_trusts_the_registries_that_builds_do(tmp_path: Path) -> None:
    """One file is all that anybody sets."""
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    async with rig(lambda job: DONE, buildkit_address=None) as (_, client):
        settings = ImageSettings()
        async with JobBuilder(
            client, CLUSTER, settings, "run-1", "shard-1", ca_file=str(tmp_path / "ca.pem"), look_seconds=0.2
        ) as builder:
            await builder.prepare()
        config = await client.get(CONFIG_MAPS, "buildkitd")
        assert config["data"]["registry-ca.pem"] == "-----BEGIN CERTIFICATE-----"


async def test_certificates_that_buildkit_does_not_take_are_told_at_once() -> None:
    refused = failed('error: failed to list workers: Unavailable: "authentication handshake failed: x509: unknown"')
    async with rig(lambda job: refused, buildkit_start_seconds=600) as (builder, _):
        with pytest.raises(BuilderRefusedError, match=r"set images\.buildkit_tls_secret"):
            await builder.prepare()


async def test_jobs_that_a_killed_caller_left_count_among_those_that_run_at_once() -> None:
    def order(number: int) -> BuildOrder:
        return replace(ORDER, key=f"{number:04}", task=f"task-{number}")

    async with rig(lambda job: None, parallelism=2) as (builder, client):
        killed = [asyncio.create_task(builder.build(order(number))) for number in range(2)]
        async with Watcher(client, JOBS) as jobs:
            left = await jobs.wait_until(
                lambda found: list(found.values()) if len(found) == 2 else None, timeout_seconds=10
            )
            for task in killed:
                task.cancel()
            third = asyncio.create_task(builder.build(order(3)))
            await asyncio.sleep(0.2)
            assert len(jobs.objects) == 2
            await end(client, left[0], DONE)
            await jobs.wait_until(lambda found: len(found) == 3 or None, timeout_seconds=10)
            third.cancel()
            await asyncio.gather(third, *killed, return_exceptions=True)


async def keep(client: KubeClient, status: JsonObject, event: tuple[str, str] | None = None) -> JsonObject:
    """The first Job, whose pod does not come to run."""
    async with Watcher(client, JOBS) as jobs:
        job = await jobs.wait_until(lambda found: next(iter(found.values()), None), timeout_seconds=10)
    labels = {**job["spec"]["template"]["metadata"]["labels"], "job-name": name_of(job)}
    pod = f"{name_of(job)}-pod"
    await client.create(PODS, {**PODS.head(pod, labels=labels), "spec": {}})
    pending = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], **status}
    await client.patch(PODS, pod, {"status": pending}, subresource="status")
    if event is not None:
        body = {"involvedObject": {"kind": "Pod", "name": pod}, "reason": event[0], "message": event[1]}
        await client.create(EVENTS, {**EVENTS.head("an-event"), **body})
    return job


async def expire(client: KubeClient, job: JsonObject) -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active longer"}
    await client.patch(JOBS, name_of(job), {"status": {"conditions": [condition]}}, subresource="status")


NO_ROOM = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient memory.",
        }
    ]
}
NO_CLAIM = ("FailedScheduling", '0/1 nodes are available: persistentvolumeclaim "verl-dataset" not found.')


@pytest.mark.parametrize(
    ("status", "event", "name", "may_pass"),
    [(NO_ROOM, None, "no-room-for-memory", True), ({}, NO_CLAIM, "claim-missing", False)],
)
async def test_a_build_whose_pod_never_started_says_what_kept_it(
    status: JsonObject, event: Any, name: str, may_pass: bool
) -> None:
    async with rig(lambda job: None) as (builder, client):
        building = asyncio.create_task(builder.build(ORDER))
        job = await keep(client, status, event)
        await asyncio.sleep(0.6)
        await expire(client, job)
        failure = await building
        assert failure.reason.startswith(f"its pod did not start: {name}: ")
        assert failure.may_pass is may_pass


async def test_a_build_that_ran_and_was_too_slow_is_told_as_that() -> None:
    async with rig(lambda job: None) as (builder, client):
        building = asyncio.create_task(builder.build(ORDER))
        job = await keep(client, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})
        await asyncio.sleep(0.6)
        await expire(client, job)
        assert (await building).reason == "it took longer than its 3600 s"


async def test_pods_that_do_not_start_are_not_told_as_a_buildkit_that_does_not_answer() -> None:
    async with rig(lambda job: None) as (builder, client):
        preparing = asyncio.create_task(builder.prepare())
        job = await keep(client, {}, NO_CLAIM)
        await asyncio.sleep(0.6)
        await expire(client, job)
        with pytest.raises(BuilderRefusedError, match="pods that build images do not start in rl: claim-missing: "):
            await preparing


@pytest.mark.parametrize(
    ("said", "error", "name"),
    [
        ('failed to resolve reference "r.example/s:1": r.example/s:1: not found', BuilderRefusedError, "image-missing"),
        ("unexpected status from GET request to https://r: 429 Too Many Requests", BuilderUnavailableError, "limit"),
    ],
)
async def test_a_builder_image_that_cannot_be_pulled_ends_the_step_for_good_only_if_it_never_will_be(
    said: str, error: type[Exception], name: str
) -> None:
    waiting = {"reason": "ErrImagePull", "message": f'failed to pull and unpack image "r.example/s:1": {said}'}
    async with rig(lambda job: None, buildkit_start_seconds=0.3) as (builder, client):
        building = asyncio.create_task(builder.build(ORDER))
        await keep(client, {"containerStatuses": [{"name": "build", "state": {"waiting": waiting}}]})
        with pytest.raises(error, match=rf"cannot be pulled \(images\.builder_image\): .*{name}"):
            await building


def test_a_job_that_ran_out_of_time_does_not_pass_by_itself() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    assert how_ended({"status": {"conditions": [condition]}}) == "DeadlineExceeded: too long"
    assert how_ended({"status": {"conditions": [{**condition, "status": "False"}]}}) is None
    assert how_ended({}) is None


def test_names_of_jobs_are_labels_of_dns_whatever_a_task_is_called() -> None:
    stem = job_stem("r" * 50, "s", "k", "Astropy__astropy-12907/" + "x" * 80)
    assert len(stem) <= 48
    assert stem == stem.lower().replace("_", "-")
    assert job_stem("a", "s", "k", "t") != job_stem("b", "s", "k", "t")
    assert job_builder.NAME_CHARACTERS < 40
