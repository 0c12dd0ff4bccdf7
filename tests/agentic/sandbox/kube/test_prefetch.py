"""Images that nodes pull ahead. The DaemonSet's controller and the kubelet are played here, and real in
`test_kube_on_cluster.py`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kube_rig import Rig, kube_settings, memory_rig

from agentic.cluster.resources import DAEMON_SETS, PODS, JsonObject, name_of
from agentic.rollout.agent_loop_config import TRAIN, RolloutJob
from agentic.rollout.trial import TrialRunner
from agentic.sandbox.base import ImageReference
from agentic.sandbox.harbor_environment import SandboxScope
from agentic.sandbox.images import RegistryImages, images_of
from agentic.sandbox.kube.prefetch import Pulls, judge_pulls
from agentic.tasks.manifest import MANIFEST, Manifest

RUNS: JsonObject = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
BACK_OFF: JsonObject = {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}
CREATING: JsonObject = {"waiting": {"reason": "ContainerCreating"}}


def pod(**images: JsonObject) -> JsonObject:
    return {
        "metadata": {"name": "p", "labels": {}},
        "spec": {"containers": [{"name": image, "image": image} for image in images]},
        "status": {"containerStatuses": [{"name": image, "state": state} for image, state in images.items()]},
    }


def test_an_image_that_cannot_be_pulled_is_settled_and_named() -> None:
    pulls = judge_pulls([pod(a=RUNS, b=BACK_OFF), pod(a=RUNS, b=RUNS)], nodes=2)
    assert pulls.is_settled(["a", "b"])
    assert pulls.describe(["a", "b"]) == (
        "1 of 2 images are on 2 nodes; not there: "
        "b (the registry does not have the image: build and push it, or correct its name and tag (manifest unknown))"
    )


@pytest.mark.parametrize(
    ("state", "is_settled"),
    [
        (RUNS, True),
        ({"terminated": {"exitCode": 127}}, True),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, True),
        ({"waiting": {"reason": "CreateContainerError", "message": "no /bin/sh"}}, True),
        (BACK_OFF, True),
        (CREATING, False),
        ({"waiting": {"reason": "PodInitializing"}}, False),
        ({}, False),
    ],
)
def test_a_container_that_got_beyond_its_pull_has_its_image(state: JsonObject, is_settled: bool) -> None:
    assert judge_pulls([pod(a=state)], nodes=1).is_settled(["a"]) is is_settled
    assert not judge_pulls([pod(a=state)], nodes=2).is_settled(["a"])


def test_nobody_waits_where_no_node_takes_sandboxes() -> None:
    assert Pulls(0).is_settled(["a"])


class Nodes:
    """Plays the DaemonSet's controller and each node's kubelet; some images are nowhere."""

    def __init__(self, rig: Rig, count: int, nowhere: frozenset[str] = frozenset()) -> None:
        self._rig, self._count, self._nowhere = rig, count, nowhere
        self.asked: list[list[str]] = []

    async def play(self) -> None:
        seen: set[str] = set()
        while True:
            for body in (await self._rig.admin.list(DAEMON_SETS)).items:
                if name_of(body) not in seen:
                    seen.add(name_of(body))
                    await self._run(body)
            await asyncio.sleep(0.02)

    async def _run(self, daemon_set: JsonObject) -> None:
        template = daemon_set["spec"]["template"]
        self.asked.append([container["image"] for container in template["spec"]["containers"]])
        status = {"observedGeneration": 1, "desiredNumberScheduled": self._count}
        await self._rig.admin.patch(DAEMON_SETS, name_of(daemon_set), {"status": status}, subresource="status")
        for number in range(self._count):
            owner = {"kind": "DaemonSet", "name": name_of(daemon_set), "uid": daemon_set["metadata"]["uid"]}
            name = f"{name_of(daemon_set)}-{number}"
            head = PODS.head(name, labels=template["metadata"]["labels"], ownerReferences=[owner])
            await self._rig.admin.create(PODS, {**head, "spec": template["spec"]})
            states = [
                {"name": one["name"], "state": BACK_OFF if one["image"] in self._nowhere else RUNS}
                for one in template["spec"]["containers"]
            ]
            ran = {"phase": "Running", "containerStatuses": states}
            await self._rig.admin.patch(PODS, name, {"status": ran}, subresource="status")


async def expect(rig: Rig, nodes: Nodes, *images: str) -> list[str]:
    playing = asyncio.create_task(nodes.play())
    try:
        await rig.provider.expect(rig.run_id, [ImageReference(image) for image in images])
        prefetch = rig.provider.prefetches[rig.run_id]
        async with asyncio.timeout(20):
            await prefetch.settle()
    finally:
        playing.cancel()
    return prefetch.told


async def test_images_are_pulled_a_few_at_a_time_in_order_and_one_that_is_nowhere_stops_none() -> None:
    async with memory_rig("pod", prefetch={"at_once": 2, "images": 6}) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        nodes = Nodes(rig, 3, frozenset({"a:1"}))
        told = await expect(rig, nodes, "a:1", "b:1", "a:1", "c:1", "d:1", "e:1")
        assert nodes.asked == [["a:1", "b:1"], ["c:1", "d:1"], ["e:1"]]
        assert [line.partition(",")[0].partition(";")[0] for line in told] == [
            "1 of 2 images are on 3 nodes",
            "2 of 2 images are on 3 nodes",
            "1 of 1 images are on 3 nodes",
        ]
        assert "not there: a:1 (the registry does not have the image" in told[0]
        assert (await rig.admin.list(DAEMON_SETS)).items == ()
        async with asyncio.timeout(5):
            while await rig.pods():
                await asyncio.sleep(0.02)


async def test_so_many_are_ahead_and_the_next_follow_when_some_are_used() -> None:
    async with memory_rig("pod", prefetch={"at_once": 2, "images": 3}) as rig:
        assert rig.server is not None
        nodes = Nodes(rig, 1)
        rig.server.pods.starts_pods = False
        await expect(rig, nodes, "a:1", "b:1", "c:1", "d:1", "e:1")
        assert nodes.asked == [["a:1", "b:1"]], "two more would be four"
        prefetch = rig.provider.prefetches[rig.run_id]
        playing = asyncio.create_task(nodes.play())
        prefetch.use("c:1")
        await asyncio.sleep(0.1)
        assert nodes.asked == [["a:1", "b:1"]], "it was not ahead"
        prefetch.use("a:1")
        await prefetch.settle()
        prefetch.use("b:1")
        prefetch.want(["a:1", "c:1", "b:1", "d:1"])
        await prefetch.settle()
        playing.cancel()
        assert nodes.asked == [["a:1", "b:1"], ["d:1", "e:1"]]


async def test_images_that_nobody_uses_make_room_when_as_many_others_were_used() -> None:
    async with memory_rig("pod", prefetch={"at_once": 1, "images": 2}) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        nodes = Nodes(rig, 1)
        await expect(rig, nodes, "held-out:1", "held-out:2", "a:1", "b:1", "c:1")
        prefetch = rig.provider.prefetches[rig.run_id]
        playing = asyncio.create_task(nodes.play())
        for _ in range(3):
            prefetch.use("a:1")
        await asyncio.sleep(0.1)
        assert nodes.asked == [["held-out:1"], ["held-out:2"]], "one other was used"
        prefetch.use("x:1")
        await prefetch.settle()
        playing.cancel()
        assert nodes.asked == [["held-out:1"], ["held-out:2"], ["b:1"], ["c:1"]]


async def test_a_sandbox_that_starts_uses_its_image() -> None:
    async with memory_rig("pod", prefetch={"at_once": 1, "images": 1}) as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = True
        nodes = Nodes(rig, 0)
        await expect(rig, nodes, rig.image, "b:1")
        playing = asyncio.create_task(nodes.play())
        await rig.provider.acquire(rig.spec("one"))
        await rig.provider.prefetches[rig.run_id].settle()
        playing.cancel()
        assert nodes.asked == [[rig.image], ["b:1"]]


async def test_a_provider_that_closes_stops_pulling() -> None:
    async with memory_rig("pod") as rig:
        await rig.provider.expect(rig.run_id, [ImageReference("a:1")])
        async with asyncio.timeout(10):
            while not (await rig.admin.list(DAEMON_SETS)).items:
                await asyncio.sleep(0.02)
        await rig.provider.close()
        assert (await rig.admin.list(DAEMON_SETS)).items == ()


async def test_what_pulls_is_as_shut_in_as_a_sandbox() -> None:
    async with memory_rig("pod") as rig:
        await rig.provider.expect(rig.run_id, [ImageReference("a:1")])
        async with asyncio.timeout(10):
            while not (found := (await rig.admin.list(DAEMON_SETS)).items):
                await asyncio.sleep(0.02)
        spec = found[0]["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert [one["securityContext"]["capabilities"] for one in spec["containers"]] == [{"drop": ["ALL"]}]
        labels = found[0]["spec"]["template"]["metadata"]["labels"]
        assert labels["agentic-rl/owner"], "the network policy of its owner closes it in"


async def test_no_image_is_pulled_ahead_where_settings_say_none() -> None:
    async with memory_rig("pod", prefetch={"images": 0}) as rig:
        await rig.provider.expect(rig.run_id, [ImageReference("a:1")])
        assert rig.provider.prefetches == {}


def make_task(folder: Path, name: str, image: str | None) -> Path:
    (folder / name / "environment").mkdir(parents=True)
    if image is None:
        (folder / name / "environment" / "Dockerfile").write_text("FROM x\n")
    line = "" if image is None else f'docker_image = "{image}"\n'
    (folder / name / "task.toml").write_text(f"[environment]\n{line}")
    return folder / name


async def test_a_runner_of_trials_has_the_images_of_its_tasks_pulled_ahead(tmp_path: Path) -> None:
    async with memory_rig("pod", image_pattern="r.io/{task}:1") as rig:
        assert rig.server is not None
        rig.server.pods.starts_pods = False
        images = RegistryImages(rig.settings)
        runner = TrialRunner(1, SandboxScope(rig.provider, images, rig.run_id))
        tasks = [make_task(tmp_path, "one", "a:1"), tmp_path / "gone", make_task(tmp_path, "Two", None)]
        nodes = Nodes(rig, 1)
        playing: Any = asyncio.create_task(nodes.play())
        await runner.expect(tasks)
        await rig.provider.prefetches[rig.run_id].settle()
        playing.cancel()
        assert nodes.asked == [["a:1", "r.io/two:1"]]
        await runner.close()


def test_a_run_that_goes_on_comes_to_what_it_trains_on_first(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    manifest = Manifest(
        name="d",
        source="folder",
        recipe_sha256="0",
        seed=0,
        counts={},
        splits={TRAIN: ["a", "b"], "held-out": ["c"]},
        content_sha256="0",
    )
    (data / MANIFEST).write_text(manifest.model_dump_json())
    places = {"run_dir": run, "data_dir": data, "store_dir": tmp_path, "model_dir": tmp_path}
    job = RolloutJob(run_id="r", max_prompt_tokens=1, max_response_tokens=1, **places)
    assert [task.name for task in job.expected_tasks()] == ["c", "a", "b"]
    (run / "checkpoints" / "global_step_2").mkdir(parents=True)
    assert [task.name for task in job.expected_tasks()] == ["a", "b", "c"]


def test_a_task_is_called_as_harbor_calls_it(tmp_path: Path) -> None:
    task = make_task(tmp_path, "folder", None)
    (task / "task.toml").write_text('[task]\nname = "org/median"\n')
    source = RegistryImages(kube_settings("pod", image_pattern="r.io/{task}:1"))
    assert [str(getattr(image, "name", "")) for image in images_of(source, [task])] == ["r.io/median:1"]
