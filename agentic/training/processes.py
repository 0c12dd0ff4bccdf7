"""Processes that belong to a run: found by the run id in their environment, ended for good.

Daemons such as Ray's leave their parent's process group and session, so a run's processes are known by
`AGENTIC_RUN_ID` in `/proc/<pid>/environ` alone. Ending them twice is safe, and another run's are never touched.
"""

import os
import signal
import time
from pathlib import Path

from agentic.training.environment import RUN_ID_VARIABLE

_POLL_SECONDS = 0.05


def find(run_id: str) -> list[int]:
    """Process ids of a run, without the caller and its ancestors."""
    marker = f"{RUN_ID_VARIABLE}={run_id}".encode()
    own = _ancestry(os.getpid())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or somebody else's
        if marker in environment and not _is_zombie(entry):
            found.append(int(entry.name))
    return found


def end(run_id: str, *, grace_seconds: float = 5.0) -> int:
    """SIGTERM to all processes of a run, SIGKILL to those that are left; how many there were."""
    first = find(run_id)
    _signal(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while (left := find(run_id)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    while left:
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
        left = find(run_id)
    return len(first)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _ancestry(pid: int) -> set[int]:
    line = set()
    while pid > 1:
        line.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
    return line


def _is_zombie(entry: Path) -> bool:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
