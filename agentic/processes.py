"""Processes that belong to a run: known by run id and workspace in their environment, ended for good.

Daemons such as Ray's leave their parent's process group and session, so a run's processes are found by `AGENTIC_RUN_ID`
and `AGENTIC_WORKSPACE` in `/proc/<pid>/environ`, both, since a run's id is unique in its workspace only; their
descendants by parent, since a process that rewrites its title may overwrite its environment. The caller and its
ancestors are never among them, another run's processes neither. Ending is safe to repeat.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

RUN_VARIABLE = "AGENTIC_RUN_ID"
"""Marks every process of a run, together with its workspace."""

WORKSPACE_VARIABLE = "AGENTIC_WORKSPACE"
"""The workspace's root: in the marks of a process its resolved path."""

_POLL_SECONDS = 0.05


def bound(command: Sequence[str]) -> list[str]:
    """The command, made to die with the process that starts it, even if that one is killed.

    A step that is killed could otherwise leave a trainer behind that goes on beside the one of the next try.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


def marks(run_id: str, workspace: Path) -> dict[str, str]:
    """Environment variables that make a process, and all that it starts, one of the run's."""
    return {RUN_VARIABLE: run_id, WORKSPACE_VARIABLE: str(workspace.resolve())}


def find(run_id: str, workspace: Path) -> list[int]:
    """Living processes of a run, ascending."""
    wanted = {os.fsencode(f"{name}={value}") for name, value in marks(run_id, workspace).items()}
    parents = dict(_living())
    marked = {pid for pid in parents if wanted <= set(_environment(pid).split(b"\0"))}
    own = set(_lineage(os.getpid(), parents))
    return sorted(pid for pid in parents if pid not in own and marked & set(_lineage(pid, parents)) - own)


def end(run_id: str, workspace: Path, *, grace_seconds: float = 5.0) -> int:
    """SIGTERM to each process of a run, SIGKILL to those that are left after the grace; how many there were."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while remaining := find(run_id, workspace):
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
