"""`unsafe-process`: commands as bare processes of this machine, for where nothing better can be had. Warns.

Nothing is isolated: commands see and change the host with our rights. The image's files are copied into a private
folder, commands start there, and `upload`, `download` and `cwd` take paths inside to be below it; but an absolute path
in a command is the host's. SANDBOX_ROOT tells a command where the folder is, and us whose process one is: one that
leaves its session and that variable behind, or forks faster than /proc is read, is not found and lives on.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from agentic.sandbox.base import TIMEOUT_EXIT_CODE, Command, ExecResult, Sandbox, SandboxSpec
from agentic.sandbox.base_folder import find_shell
from agentic.sandbox.errors import SandboxLostError, SandboxStartError, SandboxTransferError
from agentic.sandbox.local.spawner.output import Capture
from agentic.sandbox.local.spawner.processes import KILL_ROUNDS, all_processes, kill_all, kill_session
from agentic.sandbox.local.state import RunningFolder, SandboxState, own_identity
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import UnsafeProcessSandbox

log = logging.getLogger(__name__)

CHUNK_BYTES = 65536
LAST_READ_SECONDS = 0.2
"""How long output is awaited after a command's end: a background process may hold the pipe for ever."""


class ProcessProvider:
    """All unsafe sandboxes of this process."""

    def __init__(self, settings: UnsafeProcessSandbox, store: RootfsStore) -> None:
        log.warning("sandbox.provider=unsafe-process: untrusted commands run on this machine without any isolation")
        self.settings = settings
        self.running_folder = RunningFolder(store.root.resolve() / "running")
        self._owner = own_identity()
        self._sandboxes: list[ProcessSandbox] = []

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        folder = self.running_folder.folder(spec.run_id, spec.sandbox_id)
        if folder.exists():
            raise SandboxStartError(f"sandbox {spec.run_id}/{spec.sandbox_id} runs already: give each its own id")
        if spec.folders:
            raise SandboxStartError("sandbox.provider=unsafe-process shows no folders of the host: choose another")
        self.running_folder.write(spec.run_id, spec.sandbox_id, SandboxState(self._owner))
        root = folder / "root"
        root.mkdir()
        for layer in reversed(spec.rootfs.layers[:-1] if spec.rootfs.binds else spec.rootfs.layers):
            await asyncio.to_thread(shutil.copytree, layer, root, symlinks=True, dirs_exist_ok=True)
        sandbox = ProcessSandbox(self, spec, root)
        sandbox.host_path(spec.workdir or spec.rootfs.config.workdir).mkdir(parents=True, exist_ok=True)
        self._sandboxes.append(sandbox)
        return sandbox

    async def sweep(self, run_id: str) -> int:
        return await asyncio.to_thread(self.running_folder.sweep, run_id)

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.release() for sandbox in self._sandboxes))
        self._sandboxes.clear()


class ProcessSandbox:
    """A private folder, and the processes started in it."""

    def __init__(self, provider: ProcessProvider, spec: SandboxSpec, root: Path) -> None:
        self.spec = spec
        self._provider = provider
        self._root = root
        self._sessions: set[int] = set()
        self._is_released = False

    def host_path(self, inside: str) -> Path:
        """Where a path inside lies on the host."""
        workdir = self.spec.workdir or self.spec.rootfs.config.workdir
        return Path(os.path.normpath(f"{self._root}/{os.path.normpath(os.path.join('/', workdir, inside))}"))  # noqa: PTH118

    def _require_alive(self) -> None:
        if self._is_released or not self._root.is_dir():
            raise SandboxLostError(f"sandbox {self.spec.run_id}/{self.spec.sandbox_id} is gone")

    async def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        user: str | int | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        self._require_alive()
        words = [find_shell(), "-c", command] if isinstance(command, str) else list(command)
        settings = self._provider.settings
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._root), "SANDBOX_ROOT": str(self._root)}
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=self.host_path(cwd or "."),
                env={**base, **self.spec.rootfs.config.env, **self.spec.env, **(env or {}), "PATH": base["PATH"]},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return ExecResult(126, b"", f"sandbox: cannot run {words[0]}: {error.strerror}\n".encode())
        self._sessions.add(process.pid)
        timeout = settings.command_timeout_seconds if timeout_seconds is None else timeout_seconds
        return await run_to_end(process, stdin, timeout, settings.output_limit_bytes)

    async def end_commands(self) -> None:
        self._require_alive()
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        for leader in self._sessions:
            kill_session(leader)
        self._sessions.clear()
        mark = f"SANDBOX_ROOT={self._root}".encode()
        for _ in range(KILL_ROUNDS):
            found = {row.pid for row in all_processes() if mark in environment_of(row.pid)}
            if not found:
                return
            kill_all(found)

    async def upload(self, source: Path, target: str) -> None:
        self._require_alive()
        if not source.exists():
            raise SandboxTransferError(f"cannot upload {source}: no such file or folder")
        await asyncio.to_thread(copy, source, self.host_path(target))

    async def download(self, source: str, target: Path) -> None:
        self._require_alive()
        path = self.host_path(source)
        if not path.exists():
            raise SandboxTransferError(f"cannot download {source}: no such file or folder")
        await asyncio.to_thread(copy, path, target)

    async def release(self) -> None:
        if self._is_released:
            return
        self._is_released = True
        await asyncio.to_thread(self._kill)
        self._provider.running_folder.remove(self.spec.run_id, self.spec.sandbox_id)


def environment_of(pid: int) -> list[bytes]:
    """What a process was started with; nothing when it has ended or is not ours to read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def copy(source: Path, target: Path) -> None:
    """A file to a path, or a folder's contents into a folder, with modes and links."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


async def run_to_end(
    process: asyncio.subprocess.Process, stdin: bytes, timeout_seconds: float, output_limit_bytes: int
) -> ExecResult:
    """Feed, capture within bounds, and kill the session when time is up or we are cancelled."""
    stdout, stderr = Capture(output_limit_bytes), Capture(output_limit_bytes)
    tasks = [
        asyncio.create_task(pump(process.stdout, stdout)),
        asyncio.create_task(pump(process.stderr, stderr)),
        asyncio.create_task(feed(process.stdin, stdin)),
    ]
    timed_out = False
    try:
        async with asyncio.timeout(timeout_seconds):
            await process.wait()
    except TimeoutError:
        timed_out = True
    finally:
        if process.returncode is None:
            await asyncio.to_thread(kill_session, process.pid)
            await process.wait()
        await asyncio.wait(tasks, timeout=LAST_READ_SECONDS)
        for task in tasks:
            task.cancel()
    code = process.returncode or 0
    exit_code = TIMEOUT_EXIT_CODE if timed_out else code if code >= 0 else 128 - code
    is_truncated = stdout.is_truncated or stderr.is_truncated
    return ExecResult(exit_code, stdout.value(), stderr.value(), timed_out, is_truncated)


async def pump(stream: asyncio.StreamReader | None, capture: Capture) -> None:
    while stream is not None and (chunk := await stream.read(CHUNK_BYTES)):
        capture.feed(chunk)


async def feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    stream.close()
