"""Sandboxes by bubblewrap: a root folder with a private layer on top, namespaces of their own, no network.

Owned here: what is asked of the spawner, and the life of each sandbox seen from this process. The spawner (see
`spawner/`) does the work, in a process of its own, so that our event loop neither forks nor waits.

Invariants: a sandbox that is gone raises SandboxLostError on every call and never yields an exit code; a start that
fails leaves nothing behind; `release` returns when no process, cgroup or folder of the sandbox is left.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentic.sandbox import transfer
from agentic.sandbox.base import TIMEOUT_EXIT_CODE, Command, ExecResult, Sandbox, SandboxSpec
from agentic.sandbox.base_folder import find_shell
from agentic.sandbox.errors import SandboxLostError, SandboxSetupError, SandboxStartError, SandboxTransferError
from agentic.sandbox.local.cgroup import Cgroups, Limits, SandboxCgroup, find_cgroups, is_oom_killed, remove_cgroups
from agentic.sandbox.local.spawner import wire
from agentic.sandbox.local.spawner.client import Client, SpawnerGoneError
from agentic.sandbox.local.state import ProcessIdentity, RunningFolder, SandboxState, identify, own_identity
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import MIB, BubblewrapSandbox

log = logging.getLogger(__name__)

TRANSFER_THREADS = 8
"""Threads that pack and unpack, of our own so that they never wait behind other work of the process."""
TRANSFER_TIMEOUT_SECONDS = 600.0
END_TIMEOUT_SECONDS = 20.0
"""How long killed processes may take to be gone; a write to a slow disk has to end first."""
END_POLL_SECONDS = 0.005
SCRATCH_BYTES_PER_INODE = 4096
SHM_SHARE = 4
"""One part in so many of the scratch space goes to /dev/shm."""


class BubblewrapProvider:
    """All bubblewrap sandboxes of this process, over one spawner."""

    def __init__(self, settings: BubblewrapSandbox, store: RootfsStore, cgroups: Cgroups | None = None) -> None:
        """`cgroups` is found when None, unless the settings go without."""
        self.settings = settings
        self.store = store
        self._cgroups = cgroups
        self._program = find_program(settings)
        self.shell = find_shell()
        self._running_folder = RunningFolder(store.root.resolve() / "running")
        self._owner = own_identity()
        self._client: Client | None = None
        self._client_lock = asyncio.Lock()
        self._start_gate = asyncio.Semaphore(settings.start_concurrency)
        self._sandboxes: dict[str, BubblewrapSandboxHandle] = {}
        self.threads = ThreadPoolExecutor(TRANSFER_THREADS, thread_name_prefix="sandbox-transfer")
        if settings.limits == "none":
            log.warning("sandbox.limits=none: sandboxes have no limit on memory, processes and CPU")
        elif cgroups is None:
            self._cgroups = find_cgroups()

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        name = f"{spec.run_id}/{spec.sandbox_id}"
        if name in self._sandboxes:
            raise SandboxStartError(f"sandbox {name} runs already: give each its own id")
        for socket in spec.sockets:
            open_socket_to_all(socket)
        require_folders(spec)
        async with self._start_gate:
            client = await self.client()
            cgroup = self._make_cgroup(spec)
            folders = cgroup.folders if cgroup else ()
            handle = BubblewrapSandboxHandle(self, client, spec, name, cgroup)
            self._sandboxes[name] = handle
            try:
                header, _ = await client.request(self._start_request(spec, name, cgroup))
            except SpawnerGoneError as error:
                await handle.forget()
                raise SandboxStartError(f"sandbox {name} was not started: {error}") from error
            except asyncio.CancelledError:
                await asyncio.shield(handle.release())
                raise
            if header["event"] == wire.FAILED:
                await handle.forget()
                raise SandboxStartError(f"sandbox {name} was not started: {header['reason']}")
        self._note_process_one(spec, folders, header["pid"])
        return handle

    def _note_process_one(self, spec: SandboxSpec, folders: tuple[str, ...], pid: int) -> None:
        init: ProcessIdentity | None = identify(pid)
        self._running_folder.write(spec.run_id, spec.sandbox_id, SandboxState(self._owner, folders, init))

    def _make_cgroup(self, spec: SandboxSpec) -> SandboxCgroup | None:
        """Noted down before it is made, so that whoever sweeps after us finds it."""
        name = f"{spec.run_id}.{spec.sandbox_id}"
        folders = self._cgroups.place(name).folders if self._cgroups else ()
        self._running_folder.write(spec.run_id, spec.sandbox_id, SandboxState(self._owner, folders))
        if self._cgroups is None:
            return None
        memory_mb = spec.memory_mb or self.settings.memory_mb
        limits = Limits(memory_mb * MIB, self.settings.max_processes, spec.cpus or self.settings.cpus)
        try:
            return self._cgroups.create(name, limits)
        except SandboxSetupError:
            remove_cgroups(folders)
            self._running_folder.remove(spec.run_id, spec.sandbox_id)
            raise

    def _start_request(self, spec: SandboxSpec, name: str, cgroup: SandboxCgroup | None) -> dict[str, Any]:
        root = self.store.root.resolve()
        (root / "scratch").mkdir(parents=True, exist_ok=True)
        scratch_mb = min(self.settings.scratch_mb, (spec.memory_mb or self.settings.memory_mb) // 2)
        scratch_bytes = scratch_mb * MIB
        shm_bytes = scratch_bytes // SHM_SHARE
        return {
            "op": wire.START,
            "sandbox": name,
            "store": str(root),
            "bwrap": self._program,
            "owner": self.store.owner,
            "layers": [f"layers/{layer.name}" for layer in spec.rootfs.layers],
            "binds": [[bind.source, bind.target] for bind in spec.rootfs.binds],
            "folders": [[str(source.resolve()), target] for source, target in spec.folders.items()],
            "sockets": [[str(source.resolve()), target] for source, target in spec.sockets.items()],
            "workdir": spec.workdir or spec.rootfs.config.workdir,
            "writable_layer": str(spec.writable_layer.resolve()) if spec.writable_layer else None,
            "only_writable": spec.only_writable,
            "scratch_bytes": scratch_bytes - shm_bytes,
            "scratch_inodes": (scratch_bytes - shm_bytes) // SCRATCH_BYTES_PER_INODE,
            "shm_bytes": shm_bytes,
            "cgroups": list(cgroup.folders) if cgroup else [],
            "command_cgroup": cgroup.command_parent if cgroup else None,
        }

    async def client(self) -> Client:
        """The running spawner; a new one when there is none."""
        async with self._client_lock:
            if self._client is None or self._client.is_gone:
                if self._client is not None:
                    await self._client.close()
                self._client = Client.open(self.store.owner is None, self._on_lost)
            return self._client

    def _on_lost(self, name: str) -> None:
        handle = self._sandboxes.get(name)
        if handle is not None:
            handle.mark_lost("its process 1 is dead")

    async def clear(self, handle: "BubblewrapSandboxHandle") -> None:
        """Remove what a dead sandbox leaves: cgroups and folder."""
        self._sandboxes.pop(handle.name, None)
        if handle.cgroup is not None and not await asyncio.to_thread(remove_cgroups, handle.cgroup.folders):
            log.warning("cgroups of sandbox %s could not be removed: %s", handle.name, handle.cgroup.folders)
        self._running_folder.remove(handle.spec.run_id, handle.spec.sandbox_id)

    async def sweep(self, run_id: str) -> int:
        return await asyncio.to_thread(self._running_folder.sweep, run_id)

    async def close(self) -> None:
        await asyncio.gather(*(handle.release() for handle in list(self._sandboxes.values())))
        if self._client is not None:
            await self._client.close()
            self._client = None
        self.threads.shutdown(wait=False)


class BubblewrapSandboxHandle:
    """One sandbox, seen from outside."""

    def __init__(
        self,
        provider: BubblewrapProvider,
        client: Client,
        spec: SandboxSpec,
        name: str,
        cgroup: SandboxCgroup | None,
    ) -> None:
        self.spec = spec
        self.name = name
        self.cgroup = cgroup
        self._provider = provider
        self._client = client
        self._lost_because: str | None = None
        self._released: asyncio.Task[None] | None = None
        self._env = {**spec.rootfs.config.env, **spec.env}

    def mark_lost(self, reason: str) -> None:
        if self._lost_because is None:
            over = self.cgroup is not None and is_oom_killed(self.cgroup)
            self._lost_because = f"{reason}, after its memory limit killed processes" if over else reason

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
        request = self._exec_request(command, cwd, env, timeout_seconds, user)
        return await self._run(request, stdin, {})

    def _exec_request(
        self,
        command: Command,
        cwd: str | None,
        env: Mapping[str, str] | None,
        timeout_seconds: float | None,
        user: str | int | None,
    ) -> dict[str, Any]:
        config, settings = self.spec.rootfs.config, self._provider.settings
        return {
            "op": wire.EXEC,
            "sandbox": self.name,
            "command": [self._provider.shell, "-c", command] if isinstance(command, str) else list(command),
            "cwd": cwd or self.spec.workdir or config.workdir,
            "env": {**self._env, **(env or {})},
            "user": str(config.user if user is None else user),
            "timeout": settings.command_timeout_seconds if timeout_seconds is None else timeout_seconds,
            "output_limit": settings.output_limit_bytes,
        }

    async def end_commands(self) -> None:
        try:
            async with asyncio.timeout(END_TIMEOUT_SECONDS):
                while not (await self._request({"op": wire.END, "sandbox": self.name}))[0]["is_clear"]:
                    await asyncio.sleep(END_POLL_SECONDS)
        except TimeoutError:
            self.mark_lost(f"its processes did not end within {END_TIMEOUT_SECONDS:g} s")
            raise self._loss() from None

    async def _run(self, request: dict[str, Any], stdin: bytes, fds: Mapping[str, int]) -> ExecResult:
        header, body = await self._request(request, stdin, fds)
        split = header["stdout"]
        code = TIMEOUT_EXIT_CODE if header["timed_out"] else header["code"]
        return ExecResult(code, body[:split], body[split:], header["timed_out"], header["truncated"])

    async def _request(
        self, request: dict[str, Any], stdin: bytes = b"", fds: Mapping[str, int] | None = None
    ) -> tuple[wire.Header, bytes]:
        if self._released is not None:
            raise SandboxLostError(f"sandbox {self.name} was released")
        if self._lost_because is not None:
            raise self._loss()
        try:
            header, body = await self._client.request(request, stdin, fds)
        except SpawnerGoneError as error:
            self.mark_lost(str(error))
            raise self._loss() from error
        if header["event"] == wire.LOST:
            self.mark_lost(header["reason"])
            raise self._loss()
        return header, body

    def _loss(self) -> SandboxLostError:
        return SandboxLostError(f"sandbox {self.name} is lost: {self._lost_because}")

    async def upload(self, source: Path, target: str) -> None:
        if not source.exists():
            raise SandboxTransferError(f"cannot upload {source}: no such file or folder")
        folder, name = (target, "") if source.is_dir() else os.path.split(target)
        request = self._transfer_request(transfer.UNPACK, folder or "/")
        theirs, ours = os.pipe()
        packing = self._in_thread(transfer.pack, source, name, os.fdopen(ours, "wb"))
        try:
            result = await self._run(request, b"", {"stdin": theirs})
        finally:
            os.close(theirs)
            await packing
        if result.exit_code != 0:
            raise SandboxTransferError(f"cannot upload {source} to {target}: {result.error_text.strip()}")

    async def download(self, source: str, target: Path) -> None:
        request = self._transfer_request(transfer.PACK, source)
        ours, theirs = os.pipe()
        limit_bytes = self._provider.settings.download_limit_bytes
        unpacking = self._in_thread(transfer.unpack, os.fdopen(ours, "rb"), target, limit_bytes)
        try:
            result = await self._run(request, b"", {"stdout": theirs})
        finally:
            os.close(theirs)
            damage = (await asyncio.gather(unpacking, return_exceptions=True))[0]
        if result.exit_code != 0 and not isinstance(damage, transfer.TooLargeError):
            raise SandboxTransferError(f"cannot download {source}: {result.error_text.strip()}")
        if isinstance(damage, BaseException):
            raise damage

    def _transfer_request(self, script: str, path: str) -> dict[str, Any]:
        words = ["/bin/sh", "-c", script, "sh", path]
        return self._exec_request(words, "/", None, TRANSFER_TIMEOUT_SECONDS, 0)

    def _in_thread(self, call: Any, *arguments: Any) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(self._provider.threads, call, *arguments)

    async def release(self) -> None:
        if self._released is None:
            self._released = asyncio.create_task(self._release())
        await asyncio.shield(self._released)

    async def _release(self) -> None:
        with contextlib.suppress(SpawnerGoneError):  # Then it took the sandbox with it.
            await self._client.request({"op": wire.RELEASE, "sandbox": self.name})
        await self._provider.clear(self)

    async def forget(self) -> None:
        """Clear up after a start that failed."""
        self.mark_lost("it was never up")
        await self._provider.clear(self)


def find_program(settings: BubblewrapSandbox) -> str:
    """The absolute path of bubblewrap."""
    program = shutil.which(settings.bwrap)
    if program is None:
        raise SandboxSetupError(
            f"no program {settings.bwrap!r} in PATH: install bubblewrap (apt-get install bubblewrap) or set "
            "sandbox.provider=podman"
        )
    return str(Path(program).resolve())


def open_socket_to_all(socket: Path) -> None:
    """Let other users connect: sandboxes have ids of their own. The folder around it keeps the host's users out."""
    try:
        mode = socket.stat().st_mode
        if not stat.S_ISSOCK(mode):
            raise SandboxStartError(f"{socket} is no Unix socket")
        if mode & 0o666 != 0o666:
            socket.chmod(stat.S_IMODE(mode) | 0o666)
    except OSError as error:
        raise SandboxStartError(f"socket {socket} cannot be shown to a sandbox: {error.strerror}") from error


def require_folders(spec: SandboxSpec) -> None:
    """Refuse a start that shows a folder of the host which isn't there."""
    missing = [str(folder) for folder in spec.folders if not folder.is_dir()]
    if missing:
        raise SandboxStartError(f"no folder {', '.join(missing)} to show to sandbox {spec.sandbox_id}")
