"""A Harbor environment whose commands are bare processes in a temporary folder, and which fails when told to.

Fakes isolation and the image: `environment/` of the task is copied as it is to `testbed/`, and `$ROOT` names the folder
that stands for `/`. Everything else (Harbor's calls, files, commands, their ends) is real.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from agentic.sandbox.base import ExecResult as SandboxResult
from agentic.sandbox.errors import SandboxLostError


class SandboxGone(SandboxLostError):
    """Stands for the error of a lost sandbox."""


class ProcessEnvironment(BaseEnvironment):
    """One trial's folder."""

    live: ClassVar[set[str]] = set()
    """Session ids of environments that were started and not stopped; shared, so that tests can look for leaks."""

    def __init__(
        self,
        *args: Any,
        lose_at_command: str | None = None,
        lose_times_file: str | None = None,
        start_seconds: float = 0.0,
        stop_seconds: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self._lose_at_command = lose_at_command
        self._lose_times_file = lose_times_file
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._leaders: set[int] = set()
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "process"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        await asyncio.sleep(self._start_seconds)
        self._root = Path(tempfile.mkdtemp(prefix="process-environment-"))
        self.live.add(self.session_id)
        self._fill_root()

    def _fill_root(self) -> None:
        shutil.copytree(self.environment_dir, self._root / "testbed")
        for folder in ("logs/verifier", "logs/agent", "logs/artifacts", "tests"):
            (self._root / folder).mkdir(parents=True)

    async def stop(self, delete: bool) -> None:
        await asyncio.sleep(self._stop_seconds)
        if self.session_id in self.live:
            shutil.rmtree(self._root, ignore_errors=True)
            self.live.discard(self.session_id)

    async def upload_file(self, source_path: Any, target_path: str) -> None:
        shutil.copy2(source_path, self._inside(target_path))

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Any) -> None:
        shutil.copy2(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        if self._lose_at_command is not None and self._lose_at_command in command and self._is_to_be_lost():
            raise SandboxGone(f"lost at {command!r}")
        for folder in ("/logs", "/tests", "/testbed"):
            command = command.replace(folder, f"{self._root}{folder}")
        process = await _started(
            *("timeout", "--foreground", str(timeout_sec or 60), "sh", "-c", command),
            cwd=self._root / "testbed",
            env={**os.environ, "ROOT": str(self._root)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._leaders.add(process.pid)
        try:
            stdout, stderr = await process.communicate()
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
            raise
        return ExecResult(stdout=stdout.decode(), stderr=stderr.decode(), return_code=process.returncode or 0)

    @property
    def shares_processes(self) -> bool:
        return True

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> SandboxResult:
        words = [re.sub("/(?=logs|tests)", f"{self._root}/", word) for word in command]
        if self._lose_at_command is not None and self._lose_at_command in words[2] and self._is_to_be_lost():
            raise SandboxGone(f"lost at {words[2]!r}")
        process = await _started(
            *words,
            cwd=self._root / "testbed",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        stdout, stderr = await process.communicate(stdin)
        return SandboxResult(process.returncode or 0, stdout, stderr)

    async def renew(self) -> None:
        await self.end_commands()
        for path in self._root.iterdir():
            shutil.rmtree(path)
        self._fill_root()

    async def end_commands(self) -> None:
        for leader in self._leaders:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        self._leaders.clear()

    def _inside(self, path: Any) -> Path:
        return self._root / str(path).lstrip("/")

    def _is_to_be_lost(self) -> bool:
        """Always, or as often as the file has bytes left."""
        if self._lose_times_file is None:
            return True
        file = Path(self._lose_times_file)
        left = file.read_bytes()
        file.write_bytes(left[1:])
        return bool(left)


async def _started(*words: str, **options: Any) -> asyncio.subprocess.Process:
    """A process with a session of its own. asyncio leaves its pipes open when it is cancelled while it starts one."""
    starting = asyncio.create_task(asyncio.create_subprocess_exec(*words, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
        raise


async def a_sandbox_lives() -> None:
    """Waits for one of this process."""
    async with asyncio.timeout(20):
        while not ProcessEnvironment.live:
            await asyncio.sleep(0.02)
