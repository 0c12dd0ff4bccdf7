"""Builds the images of tasks on this machine: a root folder for each environment, by its Dockerfile.

Owned here: the walk over the instructions. Neighbouring COPY and WORKDIR lines make one layer; each RUN line makes one,
executed in a sandbox with the isolation that rollouts have, on the layers built so far, its writable layer becoming the
new one. Layers that the same lines made before are found again and not made again.

Invariants: one broken environment is reported with its reason, and the others go on; an image is recorded only when all
its layers are in the store, so that killing the builder at any moment and running it again is safe; builders may run
side by side.
"""

import asyncio
import errno
import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from agentic.errors import AgenticError
from agentic.images.dockerfile import Copy, Dockerfile, MakeWorkdir, Run, parse_dockerfile
from agentic.images.errors import DockerfileError, ImageBuildError
from agentic.images.layers import LayerWriter
from agentic.images.plan import Need, plan_images
from agentic.images.settings import ImageSettings
from agentic.sandbox.base import SandboxProvider, SandboxSpec
from agentic.sandbox.errors import ImageStoreError
from agentic.sandbox.local.state import RunningFolder
from agentic.sandbox.providers import make_provider
from agentic.sandbox.rootfs import ImageConfig, Rootfs, RootfsStore, environment_hash
from agentic.sandbox.settings import BubblewrapSandbox, SandboxSettings

BUILD_RUN_ID = "build-images"
MAX_LAYERS = 80
"""What overlayfs takes in one mount, given the length of our layers' names."""
REASON_LENGTH = 400
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What ails the store and not one image, and passes when space is freed."""

Progress = Callable[[int, int, str], None]
"""Told how many images are done, of how many, and a line about the last one."""


@dataclass(frozen=True, slots=True)
class ImageResult:
    """What became of a task's image."""

    task: str
    environment_hash: str
    digest: str | None
    status: Literal["built", "cached", "failed"]
    reason: str = ""
    seconds: float = 0.0


async def build_images(
    task_dirs: Sequence[Path],
    store: RootfsStore,
    settings: ImageSettings,
    sandbox_settings: SandboxSettings,
    on_progress: Progress = lambda done, total, line: None,
) -> list[ImageResult]:
    """Build what is missing; one result for each task, in their order, and one more where a task's verifier has an
    image of its own (tests/Dockerfile)."""
    await asyncio.to_thread(store.remove_stale_work)
    await asyncio.to_thread(RunningFolder(store.root / "running").sweep, BUILD_RUN_ID)
    await asyncio.to_thread(store.ensure_base)
    wanted = await asyncio.to_thread(find_environments, task_dirs)
    folders = {environment: folder for _, environment, folder in wanted}
    needs = plan_images((task, environment) for task, environment, _ in wanted)
    gate = asyncio.Semaphore(settings.parallelism)
    results: dict[tuple[str, str], ImageResult] = {}
    async with AsyncExitStack() as stack:
        builder = ImageBuilder(store, settings, sandbox_settings, stack)

        async def build(need: Need) -> None:
            async with gate:
                result = await builder.build(need, folders[need.environment_hash])
            results.update({(task, need.environment_hash): replace(result, task=task) for task in need.tasks})
            on_progress(len(results), len(wanted), f"{result.task}: {result.status} {result.reason}".rstrip())

        try:
            async with asyncio.TaskGroup() as group:
                for need in needs:
                    group.create_task(build(need))
        except* AgenticError as failures:
            raise failures.exceptions[0] from failures
    return [results[task, environment] for task, environment, _ in wanted]


def find_environments(task_dirs: Sequence[Path]) -> list[tuple[str, str, Path]]:
    """Task, environment hash and build folder, for the agent's environment and for a verifier's own. A task that names
    an image brings nothing to build."""
    found = []
    for task_dir in task_dirs:
        folders = [] if _only_names_an_image(task_dir) else [task_dir / "environment"]
        if (task_dir / "tests" / "Dockerfile").is_file():
            folders.append(task_dir / "tests")
        found += [(task_dir.name, environment_hash(folder), folder) for folder in folders]
    return found


def _only_names_an_image(task_dir: Path) -> bool:
    config = task_dir / "task.toml"
    if (task_dir / "environment" / "Dockerfile").is_file() or not config.is_file():
        return False
    try:
        environment = tomllib.loads(config.read_text("utf-8")).get("environment")
    except ValueError:
        return False  # What is wrong with the task is said by whoever runs it.
    return isinstance(environment, dict) and "docker_image" in environment


class ImageBuilder:
    """Builds single images; keeps one sandbox provider for all RUN lines, made when the first is met."""

    def __init__(
        self,
        store: RootfsStore,
        settings: ImageSettings,
        sandbox_settings: SandboxSettings,
        stack: AsyncExitStack,
    ) -> None:
        self._store = store
        self._settings = settings
        self._sandbox_settings = sandbox_settings
        self._stack = stack
        self._provider: SandboxProvider | None = None
        self._runs = 0

    async def build(self, need: Need, environment_dir: Path) -> ImageResult:
        """Build or find one image. Failures of its own are in the result; those of the machine are raised."""
        started = time.monotonic()
        task, environment = need.tasks[0], need.environment_hash
        try:
            cached = await asyncio.to_thread(self._store.find, environment)
            rootfs = cached or await self._build(environment_dir)
        except (DockerfileError, ImageBuildError, OSError) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise
            if isinstance(error, OSError) and error.errno == errno.EROFS:
                raise ImageStoreError(f"the store {self._store.root} cannot be written: {error.strerror}") from error
            reason = " ".join(str(error).split())[:REASON_LENGTH]
            return ImageResult(task, environment, None, "failed", reason, time.monotonic() - started)
        if cached is None:
            await asyncio.to_thread(self._store.record, environment, rootfs)
        status: Literal["built", "cached"] = "built" if cached is None else "cached"
        return ImageResult(task, environment, rootfs.digest, status, seconds=time.monotonic() - started)

    async def _build(self, environment_dir: Path) -> Rootfs:
        base = await asyncio.to_thread(self._store.ensure_base)
        dockerfile = await asyncio.to_thread(self._read, environment_dir, base.config.env)
        layers = tuple(layer.name for layer in base.layers)
        pending: list[Copy | MakeWorkdir] = []
        for step in dockerfile.steps:
            if isinstance(step, Run):
                layers = await self._flush(pending, environment_dir, layers)
                layers += (await self._run(step, layers),)
            else:
                pending.append(step)
        layers = await self._flush(pending, environment_dir, layers)
        if len(layers) > MAX_LAYERS:
            raise ImageBuildError(f"the image has {len(layers)} layers, more than {MAX_LAYERS}: join RUN lines with &&")
        return self._store.rootfs(layers, ImageConfig(dockerfile.env, dockerfile.workdir, dockerfile.user))

    async def _flush(
        self, pending: list[Copy | MakeWorkdir], context: Path, layers: tuple[str, ...]
    ) -> tuple[str, ...]:
        """The layers, with one more for the steps that waited, if any."""
        if not pending:
            return layers
        steps, pending[:] = list(pending), []
        return (*layers, await asyncio.to_thread(self._copy, steps, context, layers))

    def _read(self, environment_dir: Path, base_env: Mapping[str, str]) -> Dockerfile:
        path = environment_dir / "Dockerfile"
        if not path.is_file():
            raise DockerfileError(f"{environment_dir.parent.name} has no environment/Dockerfile")
        if (environment_dir / ".dockerignore").exists():
            raise DockerfileError(".dockerignore is not supported: name what to COPY")
        dockerfile = parse_dockerfile(path.read_text(encoding="utf-8"), base_env)
        if dockerfile.base not in self._settings.base_images:
            raise DockerfileError(
                f"line {dockerfile.base_line}: FROM {dockerfile.base} cannot be pulled here: local images start from "
                f"{', '.join(self._settings.base_images)}"
            )
        return dockerfile

    def _copy(self, steps: Sequence[Copy | MakeWorkdir], context: Path, layers: tuple[str, ...]) -> str:
        below = self._store.rootfs(layers, ImageConfig())
        with self._store.building() as folder:
            folder.chmod(0o755)
            writer = LayerWriter(folder, below.layers, [bind.target for bind in below.binds])
            for step in steps:
                if isinstance(step, Copy):
                    writer.copy(step, context)
                else:
                    writer.make_workdir(step)
            return self._store.add_layer(folder, layers)

    async def _run(self, step: Run, layers: tuple[str, ...]) -> str:
        meaning = {**asdict(step), "line": 0, "layers": layers, "base": self._store.base_key}
        key = "run-" + hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
        digest = await asyncio.to_thread(self._store.find_step, key)
        if digest is None:
            digest = await self._execute(step, layers)
            await asyncio.to_thread(self._store.record_step, key, digest)
        return digest

    async def _execute(self, step: Run, layers: tuple[str, ...]) -> str:
        provider = self._sandbox_provider(step)
        self._runs += 1
        with self._store.building() as folder:
            spec = SandboxSpec(
                run_id=BUILD_RUN_ID,
                sandbox_id=folder.name,
                image=self._store.rootfs(layers, ImageConfig(step.env, step.workdir, step.user)),
                memory_mb=self._settings.run_memory_mb,
                writable_layer=folder,
            )
            sandbox = await provider.acquire(spec)
            try:
                result = await sandbox.exec(step.words, timeout_seconds=self._settings.run_timeout_seconds)
            finally:
                await sandbox.release()
            if result.timed_out:
                raise ImageBuildError(
                    f"line {step.line}: RUN took longer than {self._settings.run_timeout_seconds:g} s"
                )
            if result.exit_code != 0:
                output = result.error_text.strip() or result.text.strip()
                raise ImageBuildError(f"line {step.line}: RUN ended with exit code {result.exit_code}: {output[-200:]}")
            return await asyncio.to_thread(self._store.add_layer, folder / "upper", layers)

    def _sandbox_provider(self, step: Run) -> SandboxProvider:
        if not isinstance(self._sandbox_settings, BubblewrapSandbox):
            raise ImageBuildError(
                f"line {step.line}: RUN is executed in bubblewrap sandboxes only, but sandbox.provider is "
                f"{self._sandbox_settings.provider}"
            )
        if self._provider is None:
            limit = self._settings.run_output_bytes
            self._provider = make_provider(
                self._sandbox_settings.model_copy(update={"output_limit_bytes": limit}), self._store
            )
            self._stack.push_async_callback(self._provider.close)
        return self._provider
