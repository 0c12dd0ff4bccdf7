"""Processes that belong to a run: known by the run id in their environment, ended for good.

Daemons such as Ray's leave their parent's process group and session, so a run's processes are found by `AGENTIC_RUN_ID`
in `/proc/<pid>/environ`; their descendants by parent, since a process that rewrites its title may overwrite its
environment. The caller and its ancestors are never among them, another run's processes neither. Ending is safe to
repeat.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

RUN_VARIABLE = "AGENTIC_RUN_ID"
"""Marks every process of a run."""

_POLL_SECONDS = 0.05


def bound(command: Sequence[str]) -> list[str]:
    """The command, made to die with the process that starts it, even if that one is killed.

    A step that is killed could otherwise leave a trainer behind that goes on beside the one of the next try.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


def find(run_id: str) -> list[int]:
    """Living processes of a run, ascending."""
    mark = f"\0{RUN_VARIABLE}={run_id}\0".encode()
    parents = dict(_living())
    marked = {pid for pid in parents if mark in b"\0" + _environment(pid) + b"\0"}
    own = set(_lineage(os.getpid(), parents))
    return sorted(pid for pid in parents if pid not in own and marked & set(_lineage(pid, parents)) - own)


def end(run_id: str, *, grace_seconds: float = 5.0) -> int:
    """SIGTERM to each process of a run, SIGKILL to those that are left after the grace; how many there were."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while remaining := find(run_id):
        kill = time.monotonic() >= deadline
        for pid in remaining:
            if kill or pid not in asked:
                _signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
                asked.add(pid)
        time.sleep(_POLL_SECONDS)
    return len(asked)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _living() -> Iterator[tuple[int, int]]:
    """(process, its parent) for all that are neither dead nor zombies."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            yield int(entry.name), int(parent)


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""  # gone meanwhile, or somebody else's


def _lineage(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """The process and its ancestors."""
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        yield pid
        pid = parents[pid]
