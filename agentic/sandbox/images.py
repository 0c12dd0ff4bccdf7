"""Which image a task's sandbox starts from: a root folder of the store, or a name in a registry.

Owned here: the one place that knows how a task's environment becomes a `SandboxImage`. Nothing is built, pulled or
checked for existence; an image that is not known raises ImageMissingError with what to do.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentic.sandbox.base import ImageReference, SandboxImage
from agentic.sandbox.base_folder import BASE_IMAGE
from agentic.sandbox.errors import ImageMissingError
from agentic.sandbox.rootfs import RootfsStore, environment_hash
from agentic.sandbox.settings import KubeSandbox, SandboxSettings


class ImageSource(Protocol):
    """Where the images of tasks come from."""

    def find(self, task: str, environment_dir: Path, docker_image: str | None) -> SandboxImage:
        """The image of a task with this environment folder, or with the image that it names itself."""
        ...


class StoredImages:
    """Root folders of this machine."""

    def __init__(self, store: RootfsStore) -> None:
        self._store = store

    def find(self, task: str, environment_dir: Path, docker_image: str | None) -> SandboxImage:
        """See `ImageSource.find`."""
        if docker_image == BASE_IMAGE and not has_recipe(environment_dir):
            return self._store.ensure_base()
        rootfs = self._store.lookup(environment_dir)
        if rootfs is None:
            raise ImageMissingError(
                f"no image for the environment of task {task} in {self._store.root}: run build_images"
            )
        return rootfs


class RegistryImages:
    """Names that the cluster's nodes pull."""

    def __init__(self, settings: KubeSandbox) -> None:
        self._settings = settings

    def find(self, task: str, environment_dir: Path, docker_image: str | None) -> SandboxImage:
        """See `ImageSource.find`."""
        if docker_image is not None and not has_recipe(environment_dir):
            return ImageReference(self._settings.base_image if docker_image == BASE_IMAGE else docker_image)
        if self._settings.image_pattern is None:
            raise ImageMissingError(
                f"task {task} names no image but brings a Dockerfile: set sandbox.image_pattern to where its image is, "
                "such as registry.example/tasks/{task}:{environment}"
            )
        environment = environment_hash(environment_dir)
        return ImageReference(
            self._settings.image_pattern.format(task=repository_name(task), environment=environment[:32])
        )


@runtime_checkable
class PullsAhead(Protocol):
    """A provider that can have images ready before sandboxes need them."""

    async def expect(self, run_id: str, images: Iterable[SandboxImage]) -> None:
        """These will be asked for, in about this order; the provider's settings say how many of them are had ahead.
        Does not wait for them, and raises for none: what cannot be had is said in the log, and by `acquire`. May be
        repeated."""
        ...


def images_of(source: ImageSource, task_dirs: Iterable[Path]) -> Iterator[SandboxImage]:
    """The images of tasks in Harbor's format. What is wrong with a task is said by whoever runs it."""
    for task_dir in task_dirs:
        if not task_dir.is_dir():
            continue
        name, docker_image = named_by(task_dir)
        try:
            yield source.find(name, task_dir / "environment", docker_image)
        except (ImageMissingError, OSError):
            continue


def named_by(task_dir: Path) -> tuple[str, str | None]:
    """Harbor's name of a task, and the image that it names."""
    try:
        config: dict[str, Any] = tomllib.loads((task_dir / "task.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return task_dir.name, None
    name = str(_table(config, "task").get("name") or task_dir.name).rpartition("/")[2]
    image = _table(config, "environment").get("docker_image")
    return name, None if image is None else str(image)


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    table = config.get(name)
    return table if isinstance(table, dict) else {}


def base_image(settings: SandboxSettings, store: RootfsStore) -> SandboxImage:
    """What a sandbox without a task starts from."""
    return open_images(settings, store).find("the base", store.root / "none", BASE_IMAGE)


def has_recipe(environment_dir: Path) -> bool:
    return (environment_dir / "Dockerfile").exists()


def repository_name(task: str) -> str:
    """A task's name as part of a repository's: lower case, digits and single separators."""
    return re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-") or "task"


def open_images(settings: SandboxSettings, store: RootfsStore) -> ImageSource:
    """The images for sandboxes of these settings."""
    return RegistryImages(settings) if isinstance(settings, KubeSandbox) else StoredImages(store)
