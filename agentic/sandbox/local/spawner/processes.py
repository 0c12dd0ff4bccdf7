"""The state that the spawner keeps: sandboxes, and commands running in them; how each ends.

A command ends when its own process ends, however many background processes it leaves; those keep their output pipes,
which are drained and thrown away so that they don't block or break. Killing a command kills its cgroup, which is all
that it started, however detached; without cgroups, what began in the sandbox after it did.
"""

# The spawner stays small: pathlib is a megabyte and milliseconds.
# ruff: noqa: PTH106, PTH110, PTH115, PTH123, PTH208

import contextlib
import errno
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from agentic.sandbox.local.spawner import syscalls
from agentic.sandbox.local.spawner.output import Capture

KILL_ROUNDS = 200
"""Passes over a cgroup's processes when they cannot be killed in one go; each pass kills all that it sees, and no new
one can be made, so that two are enough unless the kernel is slow to reap."""

PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat."""


@dataclass
class RunningSandbox:
    """A sandbox between its start and its end."""

    name: str
    request: dict[str, Any]
    monitor_pid: int
    monitor_pidfd: int
    has_monitor: bool = True
    init_pid: int = 0
    init_pidfd: int = -1
    commands: dict[int, "RunningCommand"] = field(default_factory=dict)
    leftover_cgroups: list[str] = field(default_factory=list)
    drains: set[int] = field(default_factory=set)
    release_ids: list[int] = field(default_factory=list)
    sequence: int = 0

    def kill(self) -> None:
        """Kill process 1, and with it all inside; the monitor ends then too. Without a process 1, the monitor."""
        syscalls.send_signal(self.init_pidfd if self.init_pidfd >= 0 else self.monitor_pidfd, signal.SIGKILL)

    def is_alive(self) -> bool:
        """Whether process 1 neither has ended nor is about to: its processes are killed before it is gone itself."""
        return is_running(self.init_pid)


@dataclass
class RunningCommand:
    """A command between its fork and its report."""

    request_id: int
    sandbox: RunningSandbox
    pid: int
    pidfd: int
    cgroup: str | None
    stdout: Capture
    stderr: Capture
    outputs: dict[int, Capture]
    errors: int
    deadline: float
    stdin: int = -1
    to_write: memoryview = field(default_factory=lambda: memoryview(b""))
    timed_out: bool = False

    def has_ended(self) -> bool:
        """Whether it can be waited for, with all its threads."""
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def time_out(self) -> None:
        """Kill it because its time is up; it reports so when it has ended."""
        self.timed_out = True
        self.deadline = float("inf")
        self.kill()

    def kill(self) -> None:
        """Kill the command and all that it started."""
        if self.cgroup is not None:
            kill_cgroup(self.cgroup)
        else:
            others = {command.pid for command in self.sandbox.commands.values()} - {self.pid}
            kill_started_since(self.pid, self.sandbox.init_pid, others)


def is_running(pid: int) -> bool:
    """Whether a thread of the process exists, and is not ending; its first one may have ended before the others."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_is_thread_running(f"/proc/{pid}/task/{thread}/stat") for thread in threads)


def _is_thread_running(stat: str) -> bool:
    try:
        with open(stat) as handle:
            fields = handle.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & PF_EXITING


def kill_cgroup(folder: str) -> None:
    """Kill every process in a cgroup, even one that forks as fast as it can. One that was removed holds none."""
    if os.path.exists(folder + "/cgroup.kill"):
        _write(folder + "/cgroup.kill", "1")
        return
    with contextlib.suppress(OSError):
        _write(folder + "/pids.max", "0")
    for _ in range(KILL_ROUNDS):
        pids = {pid for pid in _members(folder) if is_running(pid)}
        if not pids:
            return
        kill_all(pids)


def _members(folder: str) -> list[int]:
    try:
        with open(folder + "/cgroup.procs") as handle:
            return [int(line) for line in handle]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process that runs, by /proc/PID/stat."""

    pid: int
    parent: int
    session: int
    started: int


def all_processes() -> list[ProcessRow]:
    """Every process that is not ending."""
    rows = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as handle:
            fields = handle.read().rpartition(")")[2].split()
            if fields[0] not in "ZX" or is_running(int(name)):
                rows.append(ProcessRow(int(name), int(fields[1]), int(fields[3]), int(fields[19])))
    return rows


def kill_session(leader: int) -> None:
    """Kill the session that a command leads and whatever descends from it."""
    doomed = {leader}
    for _ in range(KILL_ROUNDS):
        found = {row.pid for row in all_processes() if row.session == leader or row.parent in doomed} | {leader}
        kill_all(found)
        if found <= doomed:
            return
        doomed |= found


def kill_started_since(leader: int, init: int, others: set[int]) -> None:
    """Kill a command and whatever began after it in the process namespace of `init`, sessions of others excepted."""
    namespace = _namespace(init)
    since = next((row.started for row in all_processes() if row.pid == leader), None)
    for _ in range(KILL_ROUNDS):
        young = {row.pid for row in all_processes() if since is not None and row.started >= since}
        spared = {row.pid for row in all_processes() if row.session in others} | {init}
        found = {pid for pid in young - spared if _namespace(pid) == namespace}
        if not found:
            return
        kill_all(found)


def has_others(init: int) -> bool:
    """Whether anything but itself still runs in the process namespace of `init`."""
    namespace = _namespace(init)
    return any(row.pid != init and _namespace(row.pid) == namespace for row in all_processes())


def kill_all(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w") as handle:
        handle.write(text)


def remove_cgroup(folder: str) -> bool:
    """Remove an empty cgroup; False while something is in it."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
