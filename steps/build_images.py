"""Builds the environments of one part of the tasks; a broken one is reported and the others go on.

Where sandboxes run elsewhere nothing is built: the images are named, those without a name are broken, and those that
somebody has to build are listed with the folder to build them from.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agentic.errors import PermanentError
from agentic.images.settings import ImageSettings
from agentic.sandbox.settings import KubeSandbox, SandboxSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput
from steps.shared_folders import reading

NAMED_AT_MOST = 20
"""Broken environments that the output names: it is kept in the workflow's own object, which has to stay small."""


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
    """Isolation of the commands of a build."""

    @property
    def instance(self) -> str:
        return f"{self.STEP}-{self.shard.partition('/')[0]}"


class BuildImagesOutput(StepOutput):
    """Counts of the part."""

    built: int
    """Environments built now."""
    reused: int
    """Environments that were there, or that nodes pull by name."""
    broken: list[str]
    """Tasks whose environment could not be built or named, the first twenty; the log has all of them and why."""


def run(inputs: BuildImagesInput) -> BuildImagesOutput:
    """Build what is missing of the part."""
    return contract.execute(inputs, _build, BuildImagesOutput)


def _build(inputs: BuildImagesInput, step: Step) -> BuildImagesOutput:
    with reading(step, inputs.data_dir):
        if isinstance(inputs.sandbox, KubeSandbox):
            return _name(inputs, step, inputs.sandbox)
        return _build_here(inputs, step)


def _tasks(inputs: BuildImagesInput, step: Step) -> list[Path]:
    """Folders of the part."""
    index, _, shards = inputs.shard.partition("/")
    folders = sorted(path for path in (step.workspace.root / inputs.data_dir / "tasks").iterdir() if path.is_dir())
    return folders[int(index) :: int(shards)]


def _name(inputs: BuildImagesInput, step: Step, sandbox: KubeSandbox) -> BuildImagesOutput:
    from agentic.images.remote import name_images

    images = name_images(_tasks(inputs, step), sandbox)
    broken = [image for image in images if not image.name]
    for image in broken:
        sys.stdout.write(f"{image.task}: {image.reason}\n")
    if images and len(broken) == len(images):
        raise PermanentError(f"none of {len(images)} images can be named; {broken[0].task}: {broken[0].reason}")
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
    if results and len(broken) == len(results):
        raise PermanentError(
            f"none of {len(results)} environments could be built; {broken[0].task}: {broken[0].reason}"
        )
    built = sum(result.status == "built" for result in results)
    cached = sum(result.status == "cached" for result in results)
    step.progress(len(results), len(results), f"{built} built, {cached} there already, {len(broken)} broken")
    return BuildImagesOutput(built=built, reused=cached, broken=[result.task for result in broken][:NAMED_AT_MOST])


if __name__ == "__main__":
    raise SystemExit(main(BuildImagesInput, run))
