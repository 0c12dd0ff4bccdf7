"""Limits on memory, processes and CPU by cgroups, of either version.

Owned here: where our cgroups live, and what is written into them. A sandbox gets one cgroup (one in each of three
hierarchies under version 1); each of its commands gets a child of it, made by the spawner, so that a command can be
killed with all that it started. Root ignores process rlimits, so nothing else would stop a fork bomb.

Our cgroups are made below the one that we run in, so that limits set on us from outside keep holding.
"""

import contextlib
import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.local.spawner.processes import kill_cgroup, remove_cgroup

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
PREFIX = "agentic-"
PERIOD_MICROSECONDS = 100_000
OUTER_PROCESSES = 2
"""The monitor and process 1 of a sandbox count too."""

REMEDY = (
    "run as root, or in a cgroup of your own (systemd-run --user --scope -p Delegate=yes make demo), or set "
    "sandbox.limits=none to go without limits (make demo ARGS=sandbox.limits=none)"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one sandbox."""

    memory_bytes: int
    max_processes: int
    cpus: float


@dataclass(frozen=True, slots=True)
class SandboxCgroup:
    """Where the processes of one sandbox go."""

    folders: tuple[str, ...]
    """All that a process joins."""
    command_parent: str
    """The one of them in which each command gets a child."""


class Cgroups(Protocol):
    """A place in which cgroups can be made."""

    def place(self, name: str) -> SandboxCgroup:
        """Where the cgroup of a sandbox will be; nothing is made, so that it can be noted down before it exists."""
        ...

    def create(self, name: str, limits: Limits) -> SandboxCgroup:
        """Make and limit the cgroup of a sandbox. Raises SandboxSetupError when it may not be written."""
        ...


@dataclass(frozen=True, slots=True)
class CgroupsV1:
    """Three hierarchies."""

    pids: Path
    memory: Path
    cpu: Path

    def place(self, name: str) -> SandboxCgroup:
        folders = tuple(str(folder / f"{PREFIX}{name}") for folder in (self.pids, self.memory, self.cpu))
        return SandboxCgroup(folders, folders[0])

    def create(self, name: str, limits: Limits) -> SandboxCgroup:
        placed = self.place(name)
        pids, memory, cpu = map(Path, placed.folders)
        with _refusals_explained():
            _make(pids, {"pids.max": limits.max_processes + OUTER_PROCESSES})
            _make(memory, {"memory.limit_in_bytes": limits.memory_bytes})
            swap = memory / "memory.memsw.limit_in_bytes"
            if swap.exists():
                swap.write_text(str(limits.memory_bytes))
            quota = max(1000, int(limits.cpus * PERIOD_MICROSECONDS))
            _make(cpu, {"cpu.cfs_period_us": PERIOD_MICROSECONDS, "cpu.cfs_quota_us": quota})
        return placed


@dataclass(frozen=True, slots=True)
class CgroupsV2:
    """One hierarchy."""

    parent: Path

    def place(self, name: str) -> SandboxCgroup:
        folder = str(self.parent / f"{PREFIX}{name}")
        return SandboxCgroup((folder,), folder)

    def create(self, name: str, limits: Limits) -> SandboxCgroup:
        placed = self.place(name)
        folder = Path(placed.command_parent)
        quota = max(1000, int(limits.cpus * PERIOD_MICROSECONDS))
        values: dict[str, int | str] = {
            "pids.max": limits.max_processes + OUTER_PROCESSES,
            "memory.max": limits.memory_bytes,
            "cpu.max": f"{quota} {PERIOD_MICROSECONDS}",
        }
        with _refusals_explained():
            _make(folder, values)
            swap = folder / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
        return placed


@contextlib.contextmanager
def _refusals_explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxSetupError(f"cgroups cannot be written ({error}): {REMEDY}") from error


def _make(folder: Path, values: dict[str, int] | dict[str, int | str]) -> None:
    """A fresh cgroup; a leftover of the same name goes first."""
    _remove_tree(folder)
    folder.mkdir(exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(str(value))


def find_cgroups(root: Path = CGROUP_ROOT, own_cgroups: Path = OWN_CGROUPS) -> Cgroups:
    """The version that this machine uses, below our own cgroup. Raises SandboxSetupError when there is none to use."""
    own = _own_paths(own_cgroups)
    v1 = {name: _below(root, name, own) for name in ("pids", "memory", "cpu")}
    if all(v1.values()):
        return CgroupsV1(**{name: folder for name, folder in v1.items() if folder is not None})
    if (root / "cgroup.controllers").exists():
        return CgroupsV2(_prepare_v2(root, root / own.get("", "/").lstrip("/")))
    raise SandboxSetupError(f"no usable cgroups under {root}: {REMEDY}")


def _own_paths(own_cgroups: Path) -> dict[str, str]:
    """Controller (version 2: the empty name) → our path."""
    paths: dict[str, str] = {}
    for line in own_cgroups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _below(root: Path, controller: str, own: dict[str, str]) -> Path | None:
    """Our cgroup in a hierarchy of version 1, or its root when only that is visible here."""
    candidates = [root / controller / own.get(controller, "/").lstrip("/"), root / controller]
    return next((folder for folder in candidates if (folder / "cgroup.procs").exists()), None)


def _prepare_v2(root: Path, folder: Path) -> Path:
    """Let children of our cgroup have limits. Where processes are in the way, they move into a leaf: version 2 wants
    processes in leaves only, except in the real root."""
    if not (folder / "cgroup.controllers").exists():
        folder = root
    missing = {"memory", "pids", "cpu"} - set((folder / "cgroup.controllers").read_text().split())
    if missing:
        raise SandboxSetupError(f"cgroup controllers {', '.join(sorted(missing))} are not delegated to us: {REMEDY}")
    control = folder / "cgroup.subtree_control"
    if {"memory", "pids", "cpu"} <= set(control.read_text().split()):
        return folder
    with _refusals_explained():
        try:
            control.write_text("+memory +pids +cpu")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            leaf = folder / f"{PREFIX}owner"
            leaf.mkdir(exist_ok=True)
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (leaf / "cgroup.procs").write_text(pid)
            control.write_text("+memory +pids +cpu")
    return folder


def remove_cgroups(folders: tuple[str, ...], patience_seconds: float = 2.0) -> bool:
    """Kill what is in these cgroups and their children, and remove them; False when something would not go."""
    give_up = time.monotonic() + patience_seconds
    while not all(_remove_tree(Path(folder)) for folder in folders):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


def _remove_tree(folder: Path) -> bool:
    if remove_cgroup(str(folder)):
        return True
    with contextlib.suppress(OSError):
        for child in [path for path in folder.iterdir() if path.is_dir()]:
            if not remove_cgroup(str(child)):
                kill_cgroup(str(child))
                remove_cgroup(str(child))
        if remove_cgroup(str(folder)):
            return True
        kill_cgroup(str(folder))
    return remove_cgroup(str(folder))


def is_oom_killed(cgroup: SandboxCgroup) -> bool:
    """Whether the memory limit ever killed a process of this sandbox."""
    for folder in cgroup.folders:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                rows = dict(line.split() for line in Path(folder, name).read_text().splitlines())
                if int(rows.get("oom_kill", 0)) > 0:
                    return True
    return False
