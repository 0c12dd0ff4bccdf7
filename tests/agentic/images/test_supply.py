"""Finding and building the images of tasks, against a registry in memory and a builder on a script."""

import asyncio
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.cluster.errors import ForbiddenError
from agentic.errors import AgenticError
from agentic.images.buildctl import BuildFailure, BuildOrder
from agentic.images.errors import BuilderRefusedError, BuilderUnavailableError, RateLimitedError, RegistryRefusedError
from agentic.images.plan import deal
from agentic.images.reference import Reference
from agentic.images.remote import RemoteImage, name_images
from agentic.images.settings import ImageSettings, RegistrySettings
from agentic.images.supply import ImageResult, Supply
from agentic.sandbox.settings import PodSandbox

BASES = {"agentic/base:local": "r.example/base:1"}


@dataclass
class MemoryRegistry:
    """Names and what they stand for."""

    images: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, AgenticError] = field(default_factory=dict)

    async def digest_of(self, reference: Reference) -> str | None:
        if error := self.refusals.get(reference.host):
            raise error
        return self.images.get(str(reference))

    async def tags_of(self, reference: Reference) -> list[str]:
        return [name.rpartition(":")[2] for name in self.images if name.startswith(f"{reference.name}:")]

    def push(self, name: str, content: str) -> str:
        digest = self.images[name] = "sha256:" + hashlib.sha256(content.encode()).hexdigest()
        return digest


@dataclass
class ScriptedBuilder:
    """Builds at once, unless its script says otherwise."""

    registry: MemoryRegistry
    script: Callable[[BuildOrder, int], BuildFailure | None] = lambda order, attempt: None
    unreachable: AgenticError | None = None
    orders: list[BuildOrder] = field(default_factory=list)
    running: int = 0
    most: int = 0

    async def prepare(self) -> None:
        if self.unreachable is not None:
            raise self.unreachable

    async def build(self, order: BuildOrder) -> BuildFailure | None:
        self.orders.append(order)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        failure = self.script(order, sum(one.key == order.key for one in self.orders))
        if failure is None:
            for name in order.names:
                self.registry.push(str(name), order.key)
        return failure


def make_task(root: Path, name: str, dockerfile: str = "", image: str | None = None) -> Path:
    folder = root / name
    (folder / "environment").mkdir(parents=True)
    (folder / "task.toml").write_text(f'[environment]\ndocker_image = "{image}"\n' if image else "")
    if dockerfile:
        (folder / "environment/Dockerfile").write_text(dockerfile)
    return folder


def named(root: Path, pattern: str = "{registry}/t/{instance_id}:latest") -> list[RemoteImage]:
    sandbox = PodSandbox(registry="r.example", image_pattern=pattern)
    return name_images(sorted(root.iterdir()), sandbox)


async def see_to(
    images: list[RemoteImage], registry: MemoryRegistry, builder: ScriptedBuilder | None = None, /, **settings: Any
) -> list[ImageResult]:
    told: list[ImageResult] = []
    chosen = ImageSettings(**{"retry_seconds": 0.001, **settings})
    ignore: Callable[[int, int, str], None] = lambda done, total, line: None  # noqa: E731
    supply = Supply(
        registry, builder or ScriptedBuilder(registry), chosen, BASES, on_result=told.append, on_progress=ignore
    )
    results = await supply.see_to(images)
    assert sorted(map(repr, told)) == sorted(map(repr, results)), "each result is told when it is known"
    return results


def statuses(results: Iterable[ImageResult]) -> dict[str, str]:
    return {result.task: result.status for result in results}


async def test_what_is_there_is_used_by_digest_and_the_rest_is_built(tmp_path: Path) -> None:
    make_task(tmp_path, "there", "FROM scratch\n")
    make_task(tmp_path, "missing", "FROM scratch\nRUN one\n")
    registry = MemoryRegistry()
    digest = registry.push("r.example/t/there:latest", "somebody's")
    builder = ScriptedBuilder(registry)
    results = await see_to(named(tmp_path), registry, builder)
    assert statuses(results) == {"there": "found", "missing": "built"}
    images = {result.task: result.image for result in results}
    assert images["there"] == f"r.example/t/there@{digest}"
    assert images["missing"].startswith("r.example/t/missing@sha256:")
    (order,) = builder.orders
    assert [name.tag for name in order.names] == [f"env-{order.key}", "latest"]


async def test_an_image_of_ours_made_from_another_content_is_made_anew(tmp_path: Path) -> None:
    folder = make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry()
    first = await see_to(named(tmp_path), registry)
    again = await see_to(named(tmp_path), registry)
    (folder / "environment/Dockerfile").write_text("FROM scratch\nRUN more\n")
    changed = await see_to(named(tmp_path), registry)
    assert [statuses(results)["one"] for results in (first, again, changed)] == ["built", "found", "built"]
    assert first[0].image == again[0].image != changed[0].image


async def test_what_our_base_stands_for_is_part_of_the_content(tmp_path: Path) -> None:
    make_task(tmp_path, "one", "FROM agentic/base:local\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(registry)
    await see_to(named(tmp_path), registry, builder)
    assert builder.orders[0].bases == BASES
    other = Supply(
        registry,
        builder,
        ImageSettings(),
        {"agentic/base:local": "r.example/base:2"},
        on_result=lambda result: None,
        on_progress=lambda done, total, line: None,
    )
    assert statuses(await other.see_to(named(tmp_path))) == {"one": "built"}
    assert builder.orders[0].key != builder.orders[1].key


async def test_tasks_with_the_same_environment_share_one_build_and_one_image(tmp_path: Path) -> None:
    for number in range(5):
        make_task(tmp_path, f"task-{number}", "FROM scratch\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(registry)
    results = await see_to(named(tmp_path), registry, builder)
    assert len(builder.orders) == 1
    assert len({result.image for result in results}) == 1
    assert sorted(result.task for result in results) == [f"task-{number}" for number in range(5)]
    assert all(f"r.example/t/task-{number}:latest" in registry.images for number in range(5)), (
        "each by its own name too"
    )


async def test_a_task_that_leaves_those_it_shared_an_image_with_is_built_anew(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_task(tmp_path, name, "FROM scratch\n")
    registry = MemoryRegistry()
    before = await see_to(named(tmp_path), registry)
    (tmp_path / "b/environment/Dockerfile").write_text("FROM scratch\nRUN more\n")
    after = await see_to(named(tmp_path), registry)
    assert statuses(before) == {"a": "built", "b": "built"}
    assert statuses(after) == {"a": "found", "b": "built"}


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2", "3"]), min_size=1), max_size=6))
def test_whatever_became_of_a_task_set_each_image_holds_what_its_task_asks_for(history: list[dict[str, str]]) -> None:
    registry = MemoryRegistry()
    for tasks in history:
        environments = {task: hashlib.sha256(text.encode()).hexdigest()[:32] for task, text in tasks.items()}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "Dockerfile").write_text("FROM scratch\n")
            images = [
                RemoteImage(task, f"r.example/t/{task}:latest", Path(folder), environment=environment)
                for task, environment in environments.items()
            ]
            results = asyncio.run(see_to(images, registry))
        for result in results:
            content = "sha256:" + hashlib.sha256(environments[result.task].encode()).hexdigest()
            assert result.image.endswith(content), "it was built from what the task's environment is now"


@pytest.mark.parametrize("tag", ["env-prod", "env-2026-01-01", "buildcache", "env-0123abcd"])
async def test_a_strangers_image_is_used_and_never_pushed_over_whatever_his_tags_are(tmp_path: Path, tag: str) -> None:
    make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry()
    digest = registry.push("r.example/t/one:latest", "somebody's")
    registry.push(f"r.example/t/one:{tag}", "somebody's too")
    (result,) = await see_to(named(tmp_path), registry)
    assert (result.status, result.image) == ("found", f"r.example/t/one@{digest}")


async def test_a_pattern_that_names_the_content_needs_no_second_tag(tmp_path: Path) -> None:
    make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry()
    results = await see_to(named(tmp_path, "{registry}/tasks:{environment}"), registry)
    assert list(registry.images) == [results[0].name]


async def test_a_broken_image_is_one_result_and_is_not_tried_again(tmp_path: Path) -> None:
    for number in range(6):
        make_task(tmp_path, f"task-{number}", f"FROM scratch\nRUN {number}\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(
        registry,
        lambda order, attempt: BuildFailure("no such file", may_pass=False) if order.task == "task-3" else None,
    )
    results = await see_to(named(tmp_path), registry, builder)
    assert Counter(statuses(results).values()) == {"built": 5, "failed": 1}
    failed = next(result for result in results if result.status == "failed")
    assert (failed.task, failed.image, failed.reason) == ("task-3", "", "no such file")
    assert len(builder.orders) == 6


async def test_trouble_that_may_pass_is_tried_again_a_number_of_times(tmp_path: Path) -> None:
    make_task(tmp_path, "flaky", "FROM scratch\n")
    make_task(tmp_path, "dead", "FROM scratch\nRUN dead\n")
    registry = MemoryRegistry()
    passing = BuildFailure("connection reset", may_pass=True)
    builder = ScriptedBuilder(registry, lambda order, attempt: passing if order.task == "dead" or attempt < 3 else None)
    results = await see_to(named(tmp_path), registry, builder, attempts=3)
    assert statuses(results) == {"flaky": "built", "dead": "failed"}
    dead = next(one for one in results if one.task == "dead")
    assert dead.reason == "connection reset (at each of 3 attempts)"
    assert dead.may_pass, "another start of the step may have it"


async def test_a_limit_that_outlasts_our_patience_ends_the_step_for_later(tmp_path: Path) -> None:
    make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(registry, lambda order, attempt: BuildFailure("429", may_pass=True, is_limited=True))
    with pytest.raises(RateLimitedError, match="one: 429"):
        await see_to(named(tmp_path), registry, builder, attempts=2, registry=RegistrySettings(patience_seconds=0.05))
    assert len(builder.orders) > 2, "it is waited out, however few attempts there are"


async def test_no_more_than_the_settings_allow_are_built_at_once(tmp_path: Path) -> None:
    for number in range(12):
        make_task(tmp_path, f"task-{number}", f"FROM scratch\nRUN {number}\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(registry)
    await see_to(named(tmp_path), registry, builder, parallelism=3)
    assert builder.most == 3


async def test_somebody_elses_image_is_looked_for_and_never_built(tmp_path: Path) -> None:
    make_task(tmp_path, "there", image="q.example/a:1")
    make_task(tmp_path, "gone", image="q.example/b:1")
    make_task(tmp_path, "hidden", image="secret.example/c:1")
    make_task(tmp_path, "nameless")
    refusal = RegistryRefusedError("secret.example: refused (401)")
    registry = MemoryRegistry(refusals={"secret.example": refusal})
    digest = registry.push("q.example/a:1", "a")
    builder = ScriptedBuilder(registry, unreachable=BuilderUnavailableError("nobody needs it"))
    results = {result.task: result for result in await see_to(named(tmp_path), registry, builder)}
    assert results["there"].image == f"q.example/a@{digest}"
    assert (results["gone"].status, results["gone"].reason) == ("failed", "q.example/b:1: there is no such image")
    assert (results["hidden"].status, results["hidden"].image) == ("named", "secret.example/c:1"), "nodes may have keys"
    assert results["nameless"].status == "failed"


async def test_a_registry_that_refuses_us_breaks_what_would_be_built(tmp_path: Path) -> None:
    make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry(refusals={"r.example": RegistryRefusedError("r.example: refused (401)")})
    (result,) = await see_to(named(tmp_path), registry)
    assert (result.status, result.reason) == ("failed", "r.example: refused (401)")


async def test_a_builder_that_nobody_reaches_ends_the_step_instead_of_every_image(tmp_path: Path) -> None:
    make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(registry, unreachable=BuilderUnavailableError("BuildKit does not answer"))
    with pytest.raises(BuilderUnavailableError):
        await see_to(named(tmp_path), registry, builder)


async def test_a_right_that_we_lack_ends_the_step_instead_of_every_image(tmp_path: Path) -> None:
    make_task(tmp_path, "one", "FROM scratch\n")
    registry = MemoryRegistry()
    builder = ScriptedBuilder(registry, unreachable=ForbiddenError("create jobs: the account may not"))
    with pytest.raises(BuilderRefusedError, match="may not"):
        await see_to(named(tmp_path), registry, builder)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.integers(1, 6))
def test_shards_hold_every_item_once_and_keep_the_same_content_together(keys: list[str], shards: int) -> None:
    items = list(range(len(keys)))
    parts = [deal(items, keys, index, shards) for index in range(shards)]
    assert sorted(item for part in parts for item in part) == items
    for key in set(keys):
        assert sum(any(keys[item] == key for item in part) for part in parts) == 1
    sizes = [len({keys[item] for item in part}) for part in parts]
    assert max(sizes) - min(sizes) <= 1
