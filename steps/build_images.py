"""Builds the environments of one part of the tasks; a broken one is reported and the others go on."""

import asyncio
from typing import Any, ClassVar

from pydantic import Field

from agentic.images.settings import ImageSettings
from agentic.sandbox.settings import SandboxSettings
from steps import contract
from steps.command import main
from steps.contract import Step, StepInput, StepOutput


class BuildImagesInput(StepInput):
    """Which part of which tasks."""

    STEP: ClassVar[str] = "build-images"
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
    """Tasks whose environment could not be built, at most twenty; all of them are in the log."""


def run(inputs: BuildImagesInput) -> BuildImagesOutput:
    """Build what is missing of the part."""
    return contract.execute(inputs, _build, BuildImagesOutput)


def _build(inputs: BuildImagesInput, step: Step) -> BuildImagesOutput:
    from agentic.images.local import build_images

    index, _, shards = inputs.shard.partition("/")
    folders = sorted(path for path in (step.workspace.root / inputs.data_dir / "tasks").iterdir() if path.is_dir())
    raise NotImplementedError(build_images, folders[int(index) :: int(shards)], asyncio)


if __name__ == "__main__":
    raise SystemExit(main(BuildImagesInput, run))
