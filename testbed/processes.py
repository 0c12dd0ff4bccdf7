"""The cluster's daemons: started apart from the caller, known by pid and start time, ended for good.

A pid alone may have been reused by the time that somebody reads it, so each pid file holds the process's start time as
well, and a process whose start time differs is not ours.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from testbed.layout import Layout

GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL; some controllers never end by themselves."""
_POLL_SECONDS = 0.05


def started_at(pid: int) -> str:
    """In clock ticks since boot; empty when there is no such process or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Daemons:
    """By name; the record lies in the cluster's state, so any process can ask and end."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def pid(self, name: str) -> int | None:
        """Of the living process, else None."""
        try:
            pid, born = (self._layout.pids / name).read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if started_at(int(pid)) == born else None

    def start(self, name: str, command: Sequence[str]) -> None:
        """In the cluster's network namespace and in a session of its own; output goes to its log."""
        self._layout.logs.mkdir(parents=True, exist_ok=True)
        self._layout.pids.mkdir(parents=True, exist_ok=True)
        # Not `ip netns exec`: that one mounts /sys anew, which hides the control groups from kubelet and containerd.
        entering = ["nsenter", f"--net={self._layout.network_namespace}", "--"]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*entering, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self._layout.pids / name).write_text(f"{process.pid} {started_at(process.pid)}")

    def log(self, name: str) -> Path:
        return self._layout.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of a daemon's log in one line, for an error message."""
        try:
            lines = self.log(name).read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1][-400:] if lines else "it wrote nothing"

    def names(self) -> list[str]:
        """All that were ever started and not stopped since."""
        return sorted(path.name for path in self._layout.pids.glob("*"))

    def stop(self, name: str) -> None:
        """Safe to repeat; a process that is not ours is left alone."""
        pid = self.pid(name)
        if pid is not None:
            end([pid])
        (self._layout.pids / name).unlink(missing_ok=True)


def end(pids: Iterable[int], *, grace_seconds: float = GRACE_SECONDS) -> None:
    """SIGTERM, and SIGKILL to those that are left after the grace. Returns when all are gone."""
    left = {pid: born for pid in pids if (born := started_at(pid))}
    asked: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while left:
        number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
        for pid in left:
            if number == signal.SIGKILL or pid not in asked:
                _signal(pid, number)
                asked.add(pid)
        time.sleep(_POLL_SECONDS)
        left = {pid: born for pid, born in left.items() if started_at(pid) == born}


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
