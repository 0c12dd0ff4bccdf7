"""The control group under which kubelet puts pods: one folder in each hierarchy of version 1, or one of version 2.

It is also how `down` finds whatever still runs in a pod: by membership, which a process cannot leave by forking.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import MachineError, StartError
from testbed.layout import Layout

_REAPED_SECONDS = 10.0


def is_unified(root: Path = Path("/sys/fs/cgroup")) -> bool:
    """Version 2 alone; a hybrid machine counts as version 1, as it does for runc."""
    return (root / "cgroup.controllers").is_file()


def make(layout: Layout) -> None:
    """Does nothing where it exists."""
    for folder in _folders(layout):
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise MachineError(
                f"{folder} cannot be made ({error.strerror}): pods need writable control groups"
            ) from error
        parent = folder.parent
        if (parent / "cgroup.subtree_control").is_file() and is_unified():
            wanted = (parent / "cgroup.controllers").read_text().split()
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
        for name in ("cpuset.cpus", "cpuset.mems"):  # version 1 starts them empty, and takes no process then
            if (folder / name).is_file() and not is_unified():
                (folder / name).write_text((parent / name).read_text())


def processes(layout: Layout) -> set[int]:
    """All that run in a pod."""
    found: set[int] = set()
    for folder in _folders(layout):
        for path in folder.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):  # a group may go while we look
                found |= {int(line) for line in path.read_text().split()}
    return found


def remove(layout: Layout) -> None:
    """Empty groups only, deepest first. A group is busy until its last zombie is reaped, which is waited for."""
    deadline = time.monotonic() + _REAPED_SECONDS
    for folder in _folders(layout):
        while folder.is_dir():
            try:
                for path in sorted(folder.rglob("*/"), reverse=True):
                    path.rmdir()
                folder.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StartError(f"{folder} cannot be removed: {error.strerror}") from error
                time.sleep(0.1)


def _folders(layout: Layout) -> Iterator[Path]:
    """From the mounts, since a version 1 machine may mount any hierarchies anywhere."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind = line.split()[:3]
        if kind in ("cgroup", "cgroup2"):
            yield Path(where) / layout.name
