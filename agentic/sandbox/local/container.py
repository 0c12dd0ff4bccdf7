"""Sandboxes as containers of podman or docker, for machines that have one of them and no bubblewrap.

Owned here: how our promises are said in the engine's words. An image of the store is imported once, by its digest; the
host's /usr and Python are bound read-only, as with bubblewrap. Every call forks the engine's client from this process
and costs tens of milliseconds, which bubblewrap's spawner avoids.

Invariants: an exit code is only believed after the container is seen running when the engine could have made the code
up; a container carries its run and its owner as labels, so that only dead owners' containers are swept; it ends by
itself after its lease.
"""

import asyncio
import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from agentic.sandbox import transfer
from agentic.sandbox.base import Command, ExecResult, Sandbox, SandboxSpec
from agentic.sandbox.base_folder import find_shell
from agentic.sandbox.errors import SandboxLostError, SandboxSetupError, SandboxStartError, SandboxTransferError
from agentic.sandbox.local.process import run_to_end
from agentic.sandbox.local.state import SAFE_NAME, ProcessIdentity, identify, own_identity
from agentic.sandbox.rootfs import Rootfs, RootfsStore
from agentic.sandbox.settings import DockerSandbox, PodmanSandbox

REPOSITORY = "localhost/agentic"
RUN_LABEL, OWNER_LABEL = "agentic.run", "agentic.owner"
PROCESS_ONE = 'exec env --ignore-signal=CHLD sleep "$1"'
PREPARE = 'chmod 755 / && mkdir -p "$WORKDIR"'
"""Podman makes the root folder of an imported image read-only even for its owner."""
PREPARE_READ_ONLY = 'mkdir -p "$WORKDIR"'
ENGINE_TIMEOUT_SECONDS = 120.0
TRANSFER_TIMEOUT_SECONDS = 600.0
ENGINE_OUTPUT_BYTES = 1024 * 1024

DOUBTFUL_CODES = frozenset({1, 125, 126, 127, 137, 255})
"""What an engine returns when the container died or never ran the command; commands return them too."""

KILL_SINCE = (
    "for round in 1 2 3; do for p in /proc/[0-9]*; do pid=${p#/proc/}; "
    '[ "$pid" = 1 ] || [ "$pid" = $$ ] && continue; '
    'read -r stat < "$p/stat" || continue; set -- "$since" ${stat##*) }; '
    '[ "${21}" -ge "$since" ] && kill -9 "$pid"; done; done 2>/dev/null; true'
)
"""Kills what was started at or after $since (in clock ticks since boot), itself and process 1 excepted."""

KILL_OWN = "kill -9 -1 2>/dev/null; true"
"""Kills all processes of the user who runs it, in one go; the kernel spares process 1 and the shell itself. Nobody may
signal another user's, root included, since containers have no capabilities; nor can a process change its user."""
AWAIT_END = (
    "for round in $(seq 200); do left=; for p in /proc/[0-9]*; do pid=${p#/proc/}; "
    '[ "$pid" = 1 ] || [ "$pid" = $$ ] && continue; '
    'read -r stat < "$p/stat" || continue; set -- ${stat##*) }; '
    '[ "$1" = Z ] || left=$pid; done; [ -z "$left" ] && exit 0; sleep 0.05; done 2>/dev/null; exit 1'
)
"""Waits until nothing else runs; exit code 1 when something does not end."""


class ContainerProvider:
    """All containers of this process."""

    def __init__(self, settings: PodmanSandbox | DockerSandbox, store: RootfsStore) -> None:
        self.settings = settings
        self.threads = ThreadPoolExecutor(8, thread_name_prefix="sandbox-transfer")
        self._store = store
        self._owner = own_identity()
        self._start_gate = asyncio.Semaphore(settings.start_concurrency)
        self._import_lock = asyncio.Lock()
        self._sandboxes: dict[str, ContainerSandboxHandle] = {}

    async def engine(
        self, *words: str, stdin: bytes = b"", timeout_seconds: float = ENGINE_TIMEOUT_SECONDS
    ) -> ExecResult:
        """Run the engine's client."""
        process = await self.start_engine(*words)
        return await run_to_end(process, stdin, timeout_seconds, ENGINE_OUTPUT_BYTES)

    async def start_engine(
        self, *words: str, stdin: int = asyncio.subprocess.PIPE, stdout: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self.settings.program,
                *words,
                stdin=stdin,
                stdout=stdout,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise SandboxSetupError(
                f"no program {self.settings.program!r} in PATH: install {self.settings.provider} or set "
                "sandbox.provider=bubblewrap"
            ) from None

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        for name in (spec.run_id, spec.sandbox_id):
            if not SAFE_NAME.fullmatch(name):
                raise SandboxSetupError(f"{name!r} is no run or sandbox id: use letters, digits, '.', '_' and '-'")
        if spec.writable_layer is not None:
            raise SandboxSetupError(
                "containers cannot write into a layer: build images with sandbox.provider=bubblewrap"
            )
        name = f"agentic-{spec.run_id}-{spec.sandbox_id}"
        async with self._start_gate:
            image = await self._ensure_image(spec.rootfs)
            result = await self.engine(
                "run", "--detach", "--name", name, *self._run_options(spec), image, *self._init()
            )
        if result.exit_code != 0:
            reason = result.error_text.strip()[-300:]
            if "in use" not in reason:
                await self.engine("rm", "--force", name)
            raise SandboxStartError(f"container {name} was not started: {reason}")
        handle = ContainerSandboxHandle(self, spec, name)
        self._sandboxes[name] = handle
        prepare = PREPARE if spec.only_writable is None else PREPARE_READ_ONLY
        prepared = await handle.exec(prepare, cwd="/", user=0, env={"WORKDIR": handle.workdir})
        if prepared.exit_code != 0:
            await handle.release()
            raise SandboxStartError(f"container {name} was not prepared: {prepared.error_text.strip()[-300:]}")
        return handle

    def _init(self) -> list[str]:
        return ["/bin/sh", "-c", PROCESS_ONE, "sh", str(self.settings.lease_seconds)]

    def _run_options(self, spec: SandboxSpec) -> list[str]:
        settings, memory = self.settings, f"{spec.memory_mb or self.settings.memory_mb}m"
        options = [
            "--rm",
            "--stop-timeout=0",
            "--network=none",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--hostname=sandbox",
        ]
        options += [f"--memory={memory}", f"--memory-swap={memory}", f"--pids-limit={settings.max_processes}"]
        options += [f"--cpus={spec.cpus or settings.cpus}", "--user=0", "--workdir=/"]
        if spec.only_writable is not None:
            options += ["--read-only", *(f"--tmpfs={path}:rw,exec,mode=777" for path in spec.only_writable)]
        options += [
            f"--label={RUN_LABEL}={spec.run_id}",
            f"--label={OWNER_LABEL}={self._owner.pid}:{self._owner.started}",
        ]
        options += [f"--volume={bind.source}:{bind.target}:ro" for bind in spec.rootfs.binds]
        options += [f"--volume={source.resolve()}:{target}:ro" for source, target in spec.folders.items()]
        options += [f"--volume={source.resolve()}:{target}" for source, target in spec.sockets.items()]
        return options + ([f"--runtime={settings.runtime}"] if settings.runtime else []) + list(settings.options)

    async def _ensure_image(self, rootfs: Rootfs) -> str:
        """The engine's name of an image of the store, imported when it isn't there yet."""
        name = f"{REPOSITORY}:{rootfs.digest[:32]}"
        async with self._import_lock:
            if (await self.engine("image", "inspect", name)).exit_code == 0:
                return name
            archive = await asyncio.to_thread(archive_layers, rootfs.layers)
            result = await self.engine("import", "-", name, stdin=archive)
        if result.exit_code != 0:
            raise SandboxStartError(f"image {name} was not imported: {result.error_text.strip()[-300:]}")
        return name

    async def sweep(self, run_id: str) -> int:
        found = (await self.engine("ps", "--all", "--quiet", f"--filter=label={RUN_LABEL}={run_id}")).text.split()
        if not found:
            return 0
        rows = await self.engine(
            "inspect", f'--format={{{{.Id}}}} {{{{index .Config.Labels "{OWNER_LABEL}"}}}}', *found
        )
        dead = [row.split()[0] for row in rows.text.splitlines() if not is_owner_alive(row.split()[-1])]
        if dead:
            await self.engine("rm", "--force", *dead)
        return len(dead)

    async def remove(self, name: str) -> None:
        await self.engine("rm", "--force", name)
        self._sandboxes.pop(name, None)

    async def close(self) -> None:
        await asyncio.gather(*(handle.release() for handle in list(self._sandboxes.values())))
        self.threads.shutdown(wait=False)


class ContainerSandboxHandle:
    """One container, seen from outside."""

    def __init__(self, provider: ContainerProvider, spec: SandboxSpec, name: str) -> None:
        self.spec = spec
        self._provider = provider
        self.workdir = spec.workdir or spec.rootfs.config.workdir
        self._name = name
        self._users = {"0"}
        self._is_released = False

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
        timeout = settings.command_timeout_seconds if timeout_seconds is None else timeout_seconds
        identity = str(self.spec.rootfs.config.user if user is None else user)
        self._users.add(identity)
        return await self._exec(words, cwd or self.workdir, env or {}, timeout, identity, stdin)

    def _require_alive(self) -> None:
        if self._is_released:
            raise SandboxLostError(f"container {self._name} was released")

    async def _exec(
        self,
        words: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        timeout_seconds: float | None,
        user: str,
        stdin: bytes,
    ) -> ExecResult:
        since = int(float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK"))
        process = await self._provider.start_engine(*self._exec_words(words, cwd, env, user))
        limit = self._provider.settings.output_limit_bytes
        try:
            result = await run_to_end(process, stdin, timeout_seconds or ENGINE_TIMEOUT_SECONDS, limit)
        except asyncio.CancelledError:
            await asyncio.shield(self._kill_since(since, user))
            raise
        if result.timed_out:
            await self._kill_since(since, user)
        if result.exit_code in DOUBTFUL_CODES or result.timed_out:
            await self._require_running()
        return result

    def _exec_words(self, words: Sequence[str], cwd: str, env: Mapping[str, str], user: str) -> list[str]:
        merged = {**self.spec.rootfs.config.env, **self.spec.env, **env}
        options = [f"--env={name}={value}" for name, value in merged.items()]
        return ["exec", "--interactive", f"--workdir={cwd}", f"--user={user}", *options, self._name, *words]

    async def _kill_since(self, since: int, user: str) -> None:
        words = ["/bin/sh", "-c", f"since={since}; {KILL_SINCE}"]
        await self._provider.engine(*self._exec_words(words, "/", {}, user))

    async def end_commands(self) -> None:
        self._require_alive()
        shell = find_shell()
        for user in sorted(self._users):
            await self._provider.engine(*self._exec_words([shell, "-c", KILL_OWN], "/", {}, user))
        result = await self._provider.engine(*self._exec_words([shell, "-c", AWAIT_END], "/", {}, "0"))
        if result.exit_code != 0:
            await self._require_running()
            raise SandboxLostError(f"container {self._name} is lost: its processes did not end")

    async def _require_running(self) -> None:
        """The engine's word that the container lives, before a code that it may have made up is believed."""
        state = await self._provider.engine("inspect", "--format={{.State.Running}}", self._name)
        if state.text.strip() != "true":
            raise SandboxLostError(
                f"container {self._name} is lost: {state.error_text.strip()[-200:] or 'it has ended'}"
            )

    async def upload(self, source: Path, target: str) -> None:
        self._require_alive()
        if not source.exists():
            raise SandboxTransferError(f"cannot upload {source}: no such file or folder")
        folder, name = (target, "") if source.is_dir() else os.path.split(target)
        theirs, ours = os.pipe()
        packing = self._in_thread(transfer.pack, source, name, os.fdopen(ours, "wb"))
        try:
            words = self._exec_words(["/bin/sh", "-c", transfer.UNPACK, "sh", folder or "/"], "/", {}, "0")
            process = await self._provider.start_engine(*words, stdin=theirs)
        finally:
            os.close(theirs)
        result = await run_to_end(process, b"", TRANSFER_TIMEOUT_SECONDS, ENGINE_OUTPUT_BYTES)
        await packing
        await self._require_success(result, f"cannot upload {source} to {target}")

    async def download(self, source: str, target: Path) -> None:
        self._require_alive()
        ours, theirs = os.pipe()
        limit_bytes = self._provider.settings.download_limit_bytes
        unpacking = self._in_thread(transfer.unpack, os.fdopen(ours, "rb"), target, limit_bytes)
        try:
            words = self._exec_words(["/bin/sh", "-c", transfer.PACK, "sh", source], "/", {}, "0")
            process = await self._provider.start_engine(*words, stdout=theirs)
        finally:
            os.close(theirs)
        result = await run_to_end(process, b"", TRANSFER_TIMEOUT_SECONDS, ENGINE_OUTPUT_BYTES)
        damage = (await asyncio.gather(unpacking, return_exceptions=True))[0]
        if not isinstance(damage, transfer.TooLargeError):
            await self._require_success(result, f"cannot download {source}")
        if isinstance(damage, BaseException):
            raise damage

    async def _require_success(self, result: ExecResult, what: str) -> None:
        if result.exit_code != 0:
            await self._require_running()
            raise SandboxTransferError(f"{what}: {result.error_text.strip()[-300:]}")

    def _in_thread(self, call: object, *arguments: object) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().run_in_executor(self._provider.threads, call, *arguments)  # type: ignore[arg-type]

    async def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            await self._provider.remove(self._name)


def archive_layers(layers: Sequence[Path]) -> bytes:
    """Layers, topmost first, as one archive in which later entries replace earlier ones; all owned by root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for layer in reversed(layers):
            for path in [layer, *sorted(layer.rglob("*"))]:
                _add(archive, path, str(path.relative_to(layer)))
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    member = archive.gettarinfo(path, name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    content: IO[bytes] | None = path.open("rb") if member.isreg() else None
    try:
        archive.addfile(member, content)
    finally:
        if content is not None:
            content.close()


def is_owner_alive(label: str) -> bool:
    """Whether the process that a label names still exists."""
    pid, _, started = label.partition(":")
    return pid.isdigit() and started.isdigit() and identify(int(pid)) == ProcessIdentity(int(pid), int(started))
