"""Done markers and the lock that keeps two copies of a step apart.

A marker is written after everything else and appears at once, so it exists if and only if the outputs do; one that
cannot be read, since a disk lost a part of it, stands for nothing, and the step is done anew. Its name is a hash of the
inputs without the run id. The lock is the kernel's: a killed step never leaves one behind.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentic.errors import TransientError
from agentic.files import write_json

FIELDS = frozenset({"step", "inputs", "outputs", "attempt", "started", "ended", "seconds"})
"""Of every marker."""

HASH_CHARACTERS = 12
"""Enough for the few input sets that one run sees."""


class Marker:
    """The done marker of one step with one set of inputs."""

    def __init__(self, run_dir: Path, step: str, inputs: Mapping[str, Any]) -> None:
        content = json.dumps([step, inputs], sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(content.encode()).hexdigest()[:HASH_CHARACTERS]
        self.step = step
        self.path = run_dir / "done" / f"{step}-{digest}.json"
        self._inputs = inputs

    def read(self) -> Mapping[str, Any] | None:
        """The marker, if the step is done."""
        return _read(self.path)

    def write(self, outputs: Mapping[str, Any], attempt: int, started: float, ended: float) -> None:
        """Declare the step done."""
        content = {
            "step": self.step,
            "inputs": self._inputs,
            "outputs": outputs,
            "attempt": attempt,
            "started": started,
            "ended": ended,
            "seconds": round(ended - started, 3),
        }
        write_json(self.path, content)

    @contextmanager
    def exclusive(self) -> Iterator[int]:
        """Hold the step; gives the number of this attempt. Raises TransientError when another process holds it."""
        path = self.path.with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TransientError(f"another process is running {self.step} for this run: wait for it") from error
            lock.seek(0)
            attempt = int(lock.read() or 0) + 1
            lock.seek(0)
            lock.truncate()
            lock.write(str(attempt))
            lock.flush()
            yield attempt


def newest_outputs(run_dir: Path, step: str, **having: Any) -> Mapping[str, Any] | None:
    """The outputs of the step's last completion in this run, whatever its inputs were; `having` some of them so."""
    outputs = [marker["outputs"] for marker in read_markers(run_dir, f"{step}-*")]
    wanted = [found for found in outputs if having.items() <= found.items()]
    return wanted[-1] if wanted else None


def read_markers(run_dir: Path, pattern: str = "*") -> list[Mapping[str, Any]]:
    """Those whose files are called so, in the order in which they ended."""
    found = [_read(path) for path in (run_dir / "done").glob(f"{pattern}.json")]
    return sorted((marker for marker in found if marker is not None), key=lambda marker: float(marker["ended"]))


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    is_whole = isinstance(content, dict) and content.keys() >= FIELDS
    return content if is_whole else None
