"""The sandbox of a rollout: without later history in it, and replaced by a fresh one for grading.

Also what saves round trips for agents that leave no logs, as ours: what Harbor would fetch of them is not fetched.

Harbor moves the folders `/logs/agent` and `/logs/artifacts` out of the sandbox, and the first one back in, four
commands a trial, unless they are mounted from the host. None of our agents writes anything there; saying that they are
mounted saves those commands, about 20 of a trial's 100 ms of CPU.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import ExecResult

from agentic.rollout.grading.history import REPOSITORY_DEPTH, forget_later_history
from agentic.sandbox import base
from agentic.sandbox.base import SandboxImage
from agentic.sandbox.harbor_environment import SandboxEnvironment, make_sandbox_id
from agentic.sandbox.local.process import ProcessSandbox
from agentic.sandbox.rootfs import Rootfs
from agentic.tasks.grading_policy import read_policy

_UNUSED_FOLDERS = frozenset({PurePosixPath("/logs/agent"), PurePosixPath("/logs/artifacts")})


class FreshlyGradedEnvironment(SandboxEnvironment):
    """What grading needs of an environment (see `grading/verifier.py`), over our sandboxes."""

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        folder = read_policy(self.environment_dir.parent).folder
        spec = self._running().spec
        if may_hold_repository(spec.image, folder or spec.workdir):
            await forget_later_history(self, folder)

    @property
    def shares_processes(self) -> bool:
        """Only where nothing is isolated."""
        return isinstance(self._running(), ProcessSandbox)

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> base.ExecResult:
        """As root; see `Sandbox.exec`."""
        return await self._running().exec(command, stdin=stdin, timeout_seconds=timeout_seconds, user=0)

    async def renew(self) -> None:
        """Give the sandbox back and go on in an untouched one that reaches no socket and sees no folder of the host."""
        old = self._running()
        await old.release()
        name = make_sandbox_id(f"{self.session_id}-grading")
        self._sandbox = await self._scope.provider.acquire(replace(old.spec, sandbox_id=name, sockets={}, folders={}))
        await self._upload_environment_dir_after_start()


class LoglessEnvironment(FreshlyGradedEnvironment):
    """A sandbox whose log folders only the verifier uses, which makes them itself (see
    `grading/verifier.py`)."""

    @override
    def is_path_mounted(self, environment_path: Any, host_path: Path) -> bool:
        if PurePosixPath(environment_path) in _UNUSED_FOLDERS:
            return True
        return bool(super().is_path_mounted(environment_path, host_path))

    @override
    async def ensure_dirs(self, dirs: Sequence[Any], *, chmod: bool = True) -> ExecResult | None:
        return None


def may_hold_repository(image: SandboxImage, folder: str | None) -> bool:
    """Whether a look into the sandbox is needed: not where this machine has the image's layers, and none has a `.git`
    so near to the top of the folder as history is looked for."""
    if not isinstance(image, Rootfs):
        return True
    inside = (folder or image.config.workdir).strip("/")
    return any(_holds_repository(layer / inside, REPOSITORY_DEPTH) for layer in image.layers)


def _holds_repository(folder: Path, depth: int) -> bool:
    try:
        with os.scandir(folder) as entries:
            names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    if ".git" in names:
        return True
    return depth > 1 and any(
        _holds_repository(folder / name, depth - 1) for name, is_folder in names.items() if is_folder
    )
