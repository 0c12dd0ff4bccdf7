"""Builds the environments of one part of the tasks; a broken one is reported and the others go on.

Where sandboxes are pods, images that a registry has are used by digest, and BuildKit builds and pushes the others. With
`images.builder=none`, and outside of the cluster unless it is `direct`, images are only named, and those that somebody
has to build are listed with the folder to build them from.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from agentic import json_lines
from agentic.cluster.settings import ClusterSettings
from agentic.errors import PermanentError, TransientError
from agentic.images.plan import deal
from agentic.images.settings import ImageSettings
from agentic.sandbox.images import named_by, pins_folder
from agentic.sandbox.settings import KubeSandbox, SandboxSettings
from steps import contract, workflow_owner
from steps.command import main
from steps.contract import Step, StepInput, StepOutput
from steps.shared_folders import reading

if TYPE_CHECKING:
    from agentic.images.local import ImageResult as LocalResult
    from agentic.images.remote import RemoteImage

NAMED_AT_MOST = 5
"""Broken tasks that the output names: it is kept in the workflow's own object, which has to stay small."""


class BuildImagesInput(StepInput):
    """Which part of which tasks."""

    STEP: ClassVar[str] = "build-images"
    # The data set or this machine's base may have changed since; what is there already is found, not built again.
    REPLAYED: ClassVar[bool] = False
    EXAMPLE: ClassVar[dict[str, Any]] = {
        "run_id": "try",
        "data_dir": "datasets/repair",
        "shard": "0/2",
        "images": {},
        "sandbox": {"provider": "bubblewrap"},
    }

    data_dir: str
    """Folder of the data set."""
    shard: str = Field(pattern=r"^\d+/[1-9]\d*$")
    """`0/4` is the first of four parts; tasks are dealt out in turn."""
    images: ImageSettings
    """How environments are built."""
    sandbox: SandboxSettings
    """Isolation of the commands of a build on this machine; for pods, the names of images."""
    cluster: ClusterSettings = ClusterSettings()
    """Where Jobs that build run."""

    @property
    def instance(self) -> str:
        return f"{self.STEP}-{self.shard.partition('/')[0]}"


class BuildImagesOutput(StepOutput):
    """Counts of the part."""

    built: int
    """Images built now."""
    reused: int
    """Images that were there, or that nodes pull by name."""
    broken: list[str]
    """Tasks whose image cannot be had, the first five; the log has all of them and why."""


def run(inputs: BuildImagesInput) -> BuildImagesOutput:
    """Build what is missing of the part."""
    return contract.execute(inputs, _build, BuildImagesOutput)


def _build(inputs: BuildImagesInput, step: Step) -> BuildImagesOutput:
    with reading(step, inputs.data_dir):
        if not isinstance(inputs.sandbox, KubeSandbox):
            return _build_here(inputs, step)
        if inputs.images.builder == "direct" or (inputs.images.builder == "jobs" and step.on_argo):
            return _supply(inputs, step, inputs.sandbox)
        return _name(inputs, step, inputs.sandbox)


def _tasks(inputs: BuildImagesInput, step: Step) -> list[Path]:
    """Folders of the part."""
    index, _, shards = inputs.shard.partition("/")
    folders = sorted(path for path in (step.workspace.root / inputs.data_dir / "tasks").iterdir() if path.is_dir())
    return folders[int(index) :: int(shards)]


def _named(inputs: BuildImagesInput, step: Step, sandbox: KubeSandbox) -> list["RemoteImage"]:
    """Images of the part: those with the same content are in the same, so that two parts never build one twice."""
    index, _, shards = inputs.shard.partition("/")
    images = _all_named(inputs, step, sandbox)
    return deal(images, [image.environment or image.name for image in images], int(index), int(shards))


def _all_named(inputs: BuildImagesInput, step: Step, sandbox: KubeSandbox) -> list["RemoteImage"]:
    """Images of the whole task set."""
    from agentic.images.remote import name_images

    tasks = step.workspace.root / inputs.data_dir / "tasks"
    return name_images(sorted(path for path in tasks.iterdir() if path.is_dir()), sandbox)


def _supply(inputs: BuildImagesInput, step: Step, sandbox: KubeSandbox) -> BuildImagesOutput:
    from agentic.images.remote_supply import SupplyOrder, supply_images

    registry = inputs.images.registry
    if registry.ca_file is not None:
        registry = registry.model_copy(update={"ca_file": str(step.workspace.root / registry.ca_file)})
    order = SupplyOrder(
        run_id=inputs.run_id,
        shard=inputs.instance,
        images=inputs.images.model_copy(update={"registry": registry}),
        sandbox=sandbox,
        cluster=inputs.cluster,
        record=pins_folder(step.workspace.store_dir, inputs.run_id) / f"{inputs.instance}.jsonl",
        owner=workflow_owner.reference(os.environ) if step.on_argo else None,
    )
    results = asyncio.run(supply_images(order, _named(inputs, step, sandbox), step.progress))
    failed = [result for result in results if result.status == "failed"]
    for result in results:
        if result.reason:
            sys.stdout.write(f"{result.task}: {result.status}: {result.reason}\n")
    if results and len(failed) == len(results):
        _require_some(inputs, step, any(result.may_pass for result in failed))
    built = sum(result.status == "built" for result in results)
    unseen = sum(result.status == "named" for result in results)
    there = len(results) - built - unseen - len(failed)
    unseen_words = f", {unseen} used by name since their registry cannot be asked" if unseen else ""
    line = f"{built} built, {there} there already{unseen_words}, {len(failed)} broken"
    step.progress(len(results), len(results), line)
    return BuildImagesOutput(built=built, reused=there + unseen, broken=[one.task for one in failed][:NAMED_AT_MOST])


def _require_some(inputs: BuildImagesInput, step: Step, may_pass: bool) -> None:
    """A part may well have no image that works, as one task is a part where parts are many: that is no reason to end.
    Whoever records the last result of the whole task set, and sees that no image of any part can be had, says so."""
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(pins_folder(step.workspace.store_dir, inputs.run_id).glob("*.jsonl")):
        results |= {(str(row.get("task")), str(row.get("name"))): row for row in json_lines.read(path).rows}
    tasks = step.workspace.root / inputs.data_dir / "tasks"
    wanted = {named_by(path)[0] for path in tasks.iterdir() if path.is_dir()}
    failed = {task: row for (task, _), row in results.items() if row.get("status") == "failed"}
    if len(failed) < len(results) or not wanted <= failed.keys():
        return
    task, row = next(iter(failed.items()))
    line = f"none of {len(results)} images can be had; {task}: {row.get('reason')}"
    raise TransientError(line) if may_pass else PermanentError(line)


def _name(inputs: BuildImagesInput, step: Step, sandbox: KubeSandbox) -> BuildImagesOutput:
    images = _named(inputs, step, sandbox)
    broken = [image for image in images if not image.name]
    for image in broken:
        sys.stdout.write(f"{image.task}: {image.reason}\n")
    everywhere = _all_named(inputs, step, sandbox) if broken else []
    if broken and not any(image.name for image in everywhere):
        raise PermanentError(f"none of {len(everywhere)} images can be named; {broken[0].task}: {broken[0].reason}")
    recipes = {image.name: image.recipe for image in images if image.name and image.recipe}
    for name, recipe in recipes.items():
        sys.stdout.write(f"to be in the registry: docker build -t {name} {step.workspace.relative(recipe)}\n")
    named = len({image.name for image in images if image.name})
    missing = f", {len(recipes)} of them not built here: build and push them (see the log)" if recipes else ""
    step.progress(len(images), len(images), f"{named} images are pulled by name{missing}, {len(broken)} without a name")
    return BuildImagesOutput(built=0, reused=named, broken=[image.task for image in broken][:NAMED_AT_MOST])


def _build_here(inputs: BuildImagesInput, step: Step) -> BuildImagesOutput:
    from agentic.images.local import build_images
    from agentic.sandbox.providers import open_store

    store = open_store(step.workspace.store_dir, inputs.sandbox)
    results = asyncio.run(build_images(_tasks(inputs, step), store, inputs.images, inputs.sandbox, step.progress))
    broken = [result for result in results if result.status == "failed"]
    for result in broken:
        sys.stdout.write(f"{result.task}: {result.reason}\n")
    record = pins_folder(step.workspace.store_dir, inputs.run_id) / f"{inputs.instance}.jsonl"
    json_lines.append(record, [json.dumps(_row(result)) for result in results])
    if results and len(broken) == len(results):
        _require_some(inputs, step, may_pass=False)
    built = sum(result.status == "built" for result in results)
    cached = sum(result.status == "cached" for result in results)
    step.progress(len(results), len(results), f"{built} built, {cached} there already, {len(broken)} broken")
    return BuildImagesOutput(built=built, reused=cached, broken=[result.task for result in broken][:NAMED_AT_MOST])


def _row(result: "LocalResult") -> dict[str, Any]:
    """As results of images for pods are recorded; a root folder has no name but what it is built from."""
    row = {"task": result.task, "name": result.environment_hash, "image": result.digest or ""}
    return {**row, "status": result.status, "reason": result.reason}


if __name__ == "__main__":
    raise SystemExit(main(BuildImagesInput, run))
