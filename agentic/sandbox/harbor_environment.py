"""Harbor 0.25's environment over our sandboxes.

Used by `EnvironmentConfig(import_path="agentic.sandbox.harbor_environment:SandboxEnvironment", kwargs={...})`, where
kwargs are JSON (Harbor writes them into config.json): `sockets` maps host sockets to paths inside, and `folders` maps
host folders to where they are shown read-only; an image of a registry has to hold those itself. The live parts that
trials share, come from the scope that a trial is created and run in:

    with sandbox_scope(SandboxScope(provider, images, run_id)):
        trial = await Trial.create(config)
        result = await trial.run()

Promises to Harbor: a command that runs out of time returns 124; a sandbox that is lost raises, and never returns an
exit code; an environment without an image raises ImageMissingError. There is no network, whatever the task's policy
allows.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import require_agent_environment_definition
from harbor.models.trial.config import ResourceMode

from agentic.sandbox.base import ImageReference, Sandbox, SandboxImage, SandboxProvider, SandboxSpec
from agentic.sandbox.errors import SandboxLostError, SandboxSetupError
from agentic.sandbox.images import ImageSource
from agentic.sandbox.task_sandbox import read_task_sandbox

IMPORT_PATH = "agentic.sandbox.harbor_environment:SandboxEnvironment"


@dataclass(frozen=True, slots=True)
class SandboxScope:
    """What the trials of a process share."""

    provider: SandboxProvider
    images: ImageSource
    run_id: str


_scope: ContextVar[SandboxScope] = ContextVar("sandbox scope")


@contextmanager
def sandbox_scope(scope: SandboxScope) -> Iterator[None]:
    """Trials created within, in this task and in those it starts, get their sandboxes from here."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


class SandboxEnvironment(BaseEnvironment):  # type: ignore[misc]
    """One trial's sandbox."""

    def __init__(
        self,
        *arguments: Any,
        sockets: Mapping[str, str] | None = None,
        folders: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> None:
        try:
            self._scope = _scope.get()
        except LookupError:
            raise SandboxSetupError("a trial was created outside of sandbox_scope(...): open one around it") from None
        self._sockets = {Path(source): target for source, target in (sockets or {}).items()}
        self._folders = {Path(source): target for source, target in (folders or {}).items()}
        self._sandbox: Sandbox | None = None
        super().__init__(*arguments, **keywords)

    @staticmethod
    @override
    def type() -> str:
        return "agentic-sandbox"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @override
    def _validate_definition(self) -> None:
        require_agent_environment_definition(self.environment_dir, docker_image=self.task_env_config.docker_image)

    def _find_image(self) -> SandboxImage:
        image = self.task_env_config.docker_image
        return self._scope.images.find(self.environment_name, self.environment_dir, image)

    @override
    async def start(self, force_build: bool) -> None:
        memory_mb = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        cpus = self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)
        image = self._find_image()
        said = read_task_sandbox(self.environment_dir.parent)
        spec = SandboxSpec(
            run_id=self._scope.run_id,
            sandbox_id=make_sandbox_id(self.session_id),
            image=image,
            env=self._startup_env(),
            workdir=self.task_env_config.workdir,
            memory_mb=memory_mb,
            cpus=cpus,
            sockets=self._sockets,
            folders={} if isinstance(image, ImageReference) else self._folders,
            read_only_root=said.read_only_root,
            writable_paths=said.writable_paths,
        )
        self._sandbox = await self._scope.provider.acquire(spec)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    @override
    async def stop(self, delete: bool) -> None:
        if self._sandbox is not None:
            await self._sandbox.release()

    @property
    def sockets(self) -> frozenset[str]:
        """Paths inside, at which sockets of the host are bound."""
        return frozenset(self._sockets.values())

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxLostError(f"the sandbox of {self.session_id} was never started")
        return self._sandbox

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        result = await self._running().exec(
            command,
            cwd=cwd,
            env=self._merge_env(env),
            timeout_seconds=timeout_sec,
            user=self._resolve_user(user),
        )
        return ExecResult(stdout=result.text, stderr=result.error_text, return_code=result.exit_code)

    async def end_commands(self) -> None:
        """See `Sandbox.end_commands`; the verifier calls it before it grades."""
        await self._running().end_commands()

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._running().upload(Path(source_path), str(target_path))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._running().upload(Path(source_dir), str(target_dir))

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._running().download(str(source_path), Path(target_path))

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._running().download(str(source_dir), Path(target_dir))


def make_sandbox_id(session_id: str) -> str:
    """A name that no other sandbox of the run has, still recognisable as the trial's."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", session_id).strip("-._")[:80]
    return f"{readable or 'trial'}.{uuid.uuid4().hex[:8]}"
