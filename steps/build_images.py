"""Builds the environments of one part of the tasks; a broken one is reported and the others go on."""

import asyncio
import sys
from typing import Any, ClassVar

from pydantic import Field

from agentic.errors import PermanentError
from agentic.images.settings import ImageSettings
from agentic.sandbox.settings import SandboxSettings
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
    """Environments that were there."""
    broken: list[str]
    """Tasks whose environment could not be built, the first twenty; the log has all of them and why."""


def run(inputs: BuildImagesInput) -> BuildImagesOutput:
    """Build what is missing of the part."""
    return contract.execute(inputs, _build, BuildImagesOutput)


def _build(inputs: BuildImagesInput, step: Step) -> BuildImagesOutput:
    from agentic.images.local import build_images
    from agentic.sandbox.providers import open_store

    index, _, shards = inputs.shard.partition("/")
    store = open_store(step.workspace.store_dir, inputs.sandbox)
    with reading(step, inputs.data_dir):
        folders = sorted(path for path in (step.workspace.root / inputs.data_dir / "tasks").iterdir() if path.is_dir())
        mine = folders[int(index) :: int(shards)]
        results = asyncio.run(build_images(mine, store, inputs.images, inputs.sandbox, step.progress))
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
