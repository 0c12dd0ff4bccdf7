"""Which image a task's sandbox starts from: a root folder of the store, or a name in a registry.

Owned here: the one place that knows how a task's environment becomes a `SandboxImage`. Nothing is built, pulled or
checked for existence; an image that is not known raises ImageMissingError with what to do.
"""

import re
import string
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentic import json_lines
from agentic.sandbox.base import ImageReference, SandboxImage
from agentic.sandbox.base_folder import BASE_IMAGE
from agentic.sandbox.errors import ImageMissingError
from agentic.sandbox.rootfs import RootfsStore, environment_hash
from agentic.sandbox.settings import KubeSandbox, SandboxSettings

ENVIRONMENT_DIGITS = 32
"""Of an environment's hash, in the name of its image."""

VERIFIER_FOLDER = "tests"
"""Of a task: with a Dockerfile of its own, it is the environment that grading runs in."""

INSTANCE = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
"""One part of a repository's name."""


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
        environment = environment_hash(environment_dir)[:ENVIRONMENT_DIGITS]
        of_verifier = environment_dir.name == VERIFIER_FOLDER
        return ImageReference(_fill(self._settings, f"{task}-verifier" if of_verifier else task, environment))


def _fill(settings: KubeSandbox, task: str, environment: str) -> str:
    """The name by `sandbox.image_pattern`."""
    pattern = settings.image_pattern
    if pattern is None or (settings.registry is None and "registry" in _fields(pattern)):
        guide = "" if pattern is None else f", or sandbox.registry for {pattern}"
        raise ImageMissingError(
            f"task {task} names no image but brings a Dockerfile: set sandbox.image_pattern to where its image is, "
            f"such as registry.example/tasks/{{task}}:{{environment}}{guide}"
        )
    return pattern.format(
        registry=settings.registry,
        instance_id=instance_name(task),
        task=repository_name(task),
        environment=environment,
    )


def _fields(pattern: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(pattern) if field}


class PinnedImages:
    """Names of a run's images by the digests that its build-images found or made: what a tag stands for may change
    while the run goes on, and between two attempts at it."""

    def __init__(self, source: ImageSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._pins: dict[str, str] | None = None

    def find(self, task: str, environment_dir: Path, docker_image: str | None) -> SandboxImage:
        """See `ImageSource.find`."""
        image = self._source.find(task, environment_dir, docker_image)
        if not isinstance(image, ImageReference):
            return image
        if self._pins is None:
            self._pins = read_pins(self._folder)
        return ImageReference(self._pins.get(image.name, image.name))


def pins_folder(store_root: Path, run_id: str) -> Path:
    """Where a run's build-images writes what became of its images, one file a shard: beside the store of the same
    workspace. Nothing is there for sandboxes of another place, such as a trial server's, which go by the names."""
    return store_root.parent / "runs" / run_id / "images"


def read_pins(folder: Path) -> dict[str, str]:
    """Name → name by digest; the last word about a name counts."""
    rows = (row for path in sorted(folder.glob("*.jsonl")) for row in json_lines.read(path).rows)
    pins = {str(row.get("name", "")): str(row.get("image", "")) for row in rows}
    return {name: image for name, image in pins.items() if name and image}


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


def instance_name(task: str) -> str:
    """A task's name in lower case where a repository may be called so, as `astropy__astropy-12907` may."""
    name = task.lower()
    return name if INSTANCE.fullmatch(name) else repository_name(task)


def base_image(settings: SandboxSettings, store: RootfsStore) -> SandboxImage:
    """What a sandbox without a task starts from."""
    return open_images(settings, store).find("the base", store.root / "none", BASE_IMAGE)


def has_recipe(environment_dir: Path) -> bool:
    return (environment_dir / "Dockerfile").exists()


def repository_name(task: str) -> str:
    """A task's name as part of a repository's: lower case, digits and single separators."""
    return re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-") or "task"


def open_images(settings: SandboxSettings, store: RootfsStore, run_id: str | None = None) -> ImageSource:
    """The images for sandboxes of these settings; with a run, as its build-images left them."""
    if not isinstance(settings, KubeSandbox):
        return StoredImages(store)
    images = RegistryImages(settings)
    return images if run_id is None else PinnedImages(images, pins_folder(store.root, run_id))
