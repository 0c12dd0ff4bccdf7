"""The images of tasks whose sandboxes run elsewhere: their names, and what stands in the way of one.

Nothing is built here, and nothing is asked of a registry: `supply` does both. An image that a task brings a Dockerfile
for is named together with the folder to build it from.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentic.sandbox.base import ImageReference
from agentic.sandbox.errors import ImageMissingError
from agentic.sandbox.images import ENVIRONMENT_DIGITS, VERIFIER_FOLDER, RegistryImages, has_recipe, named_by
from agentic.sandbox.rootfs import environment_hash
from agentic.sandbox.settings import KubeSandbox


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """One image of a task; its verifier may have another."""

    task: str
    name: str = ""
    """As nodes pull it; empty when it has none."""
    recipe: Path | None = None
    """The folder with the Dockerfile that has to be built and pushed under this name; None: somebody else's image."""
    reason: str = ""
    """Why it has no name."""
    environment: str = ""
    """Hash of the recipe's folder, as many digits as names have."""

    def key_with(self, bases: Sequence[str]) -> str:
        """What an image of it is built from: the recipe, and what names in it stand for at the moment."""
        if not bases:
            return self.environment
        return hashlib.sha256("\0".join([self.environment, *bases]).encode()).hexdigest()[:ENVIRONMENT_DIGITS]


def name_images(task_dirs: Sequence[Path], settings: KubeSandbox) -> list[RemoteImage]:
    """Those of all tasks, in their order."""
    source = RegistryImages(settings)
    return [
        _named(source, task_dir, folder)
        for task_dir in task_dirs
        for folder in (task_dir / "environment", task_dir / VERIFIER_FOLDER)
        if folder.name == "environment" or has_recipe(folder)
    ]


def _named(source: RegistryImages, task_dir: Path, folder: Path) -> RemoteImage:
    task, docker_image = named_by(task_dir)
    recipe = folder if has_recipe(folder) else None
    if recipe is None and docker_image is None:
        return RemoteImage(task, reason="it has neither a Dockerfile nor a docker_image in task.toml")
    try:
        image = source.find(task, folder, docker_image)
    except (ImageMissingError, OSError) as error:
        return RemoteImage(task, reason=str(error))
    name = image.name if isinstance(image, ImageReference) else ""
    return RemoteImage(task, name, recipe, environment=environment_hash(folder)[:ENVIRONMENT_DIGITS] if recipe else "")
