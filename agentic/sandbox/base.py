"""What a sandbox promises, whoever provides it.

A provider hands out sandboxes; a sandbox runs commands and moves files. Promises to callers:
- a command that ends, fails, is killed or times out yields an `ExecResult`; a sandbox that died or cannot be reached
  raises `SandboxLostError`, and then every later call does;
- a timed-out command is killed with everything it started; what earlier commands left in the background lives on,
  until `end_commands` ends it;
- captured output is bounded while it streams;
- files arrive byte for byte, with modes and symbolic links; nothing inside can make a transfer touch another path of
  the host than the one named;
- `release` and `close` may be repeated.
One contract suite runs against every implementation, the double in `memory.py` included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.rootfs import Rootfs

TIMEOUT_EXIT_CODE = 124
"""The exit code of a result with `timed_out`, as coreutils' `timeout` has it."""

ALWAYS_WRITABLE = ("/tmp", "/logs", "/tests", "/solution")
"""Where programs and Harbor write in every trial, also in a root that is read-only otherwise."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended."""

    exit_code: int
    """128 + n when signal n killed it; 124 when it ran out of time; 126 when it could not be started as asked."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    """Whether the middle of either output was left out."""

    @property
    def text(self) -> str:
        """Standard output for people: bytes that are no UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def error_text(self) -> str:
        """Standard error for people."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry, for providers whose machines pull it; its own user, folder and environment apply."""

    name: str
    """Such as `registry.example/swe-bench/astropy:1` or `...@sha256:...`."""


SandboxImage = Rootfs | ImageReference
"""What a sandbox starts from: a folder of this machine, or a name that other machines know."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to start."""

    run_id: str
    sandbox_id: str
    """Unique within the run; letters, digits, `.`, `_` and `-`."""
    image: SandboxImage
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the image's environment for every command."""
    workdir: str | None = None
    """Where commands start; None is the image's."""
    memory_mb: int | None = None
    """Lower or higher than the settings', for this sandbox."""
    cpus: float | None = None
    """Lower or higher than the settings', for this sandbox."""
    sockets: Mapping[Path, str] = field(default_factory=dict)
    """Unix sockets of the host, each with its path inside: the only network there is. The socket is made connectable
    for every user; the folder that holds it guards it on the host."""
    folders: Mapping[Path, str] = field(default_factory=dict)
    """Folders of the host that are shown read-only, each with its path inside."""
    writable_layer: Path | None = None
    """An empty folder of the host that receives what is written, for image builds; None is scratch space."""
    read_only_root: bool | None = None
    """Whether only `writable_paths` and what Harbor writes to can be written; None is the settings' word, and on one
    machine no. `unsafe-process`, which isolates nothing, does not heed it."""
    writable_paths: tuple[str, ...] = ()
    """Folders to write to in a root that is read-only otherwise."""

    @property
    def only_writable(self) -> tuple[str, ...] | None:
        """All folders that can be written; None when the whole root can."""
        return tuple(dict.fromkeys((*ALWAYS_WRITABLE, *self.writable_paths))) if self.read_only_root else None

    @property
    def rootfs(self) -> Rootfs:
        """The image, for a provider of this machine."""
        if isinstance(self.image, ImageReference):
            raise SandboxSetupError(
                f"image {self.image.name} lies in a registry but this provider mounts root folders: build its images "
                "here, or set sandbox.provider=pod"
            )
        return self.image

    @property
    def reference(self) -> str:
        """The image's name, for a provider whose machines pull it."""
        if not isinstance(self.image, ImageReference):
            raise SandboxSetupError(
                f"image {self.image.digest[:12]} is a root folder of this machine but this provider pulls from a "
                "registry: push it and set sandbox.image_pattern, or set sandbox.provider=bubblewrap"
            )
        return self.image.name


Command = str | Sequence[str]
"""A line for the shell, or the words of a program."""


class Sandbox(Protocol):
    """One running sandbox."""

    @property
    def spec(self) -> SandboxSpec: ...

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
        """Run to the end. Cancelling the call kills the command. `user` defaults to the image's."""
        ...

    async def end_commands(self) -> None:
        """End every process that commands started, however detached, and those commands that still run; their results
        come as of any killed command. On return nothing but the sandbox's own process runs, files stay as they are, and
        new commands can be started. May be repeated."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file to the path `target`, or a folder's contents into the folder `target`, making parents."""
        ...

    async def download(self, source: str, target: Path) -> None:
        """Copy a file to the path `target`, or a folder's contents into the folder `target`, making parents."""
        ...

    async def release(self) -> None:
        """End every process and forget what was written. May be repeated, also after the sandbox was lost."""
        ...


class SandboxProvider(Protocol):
    """Starts sandboxes; shared by all of a process."""

    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        """Start one. Raises SandboxStartError when it failed and left nothing behind."""
        ...

    async def sweep(self, run_id: str) -> int:
        """Remove what dead owners left of this run and say how many sandboxes that were. May be repeated, and run
        beside others: sandboxes of living owners and of other runs are not touched."""
        ...

    async def close(self) -> None:
        """Release everything that is still running. May be repeated."""
        ...
