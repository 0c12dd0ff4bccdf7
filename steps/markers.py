"""Done markers and the lock that keeps two copies of a step apart.

A marker is written after everything else and appears at once, so it exists if and only if the outputs do. Its name is
a hash of the inputs without the run id. The lock is the kernel's: a killed step never leaves one behind.
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
        try:
            content: Mapping[str, Any] = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        return content

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
    markers = [json.loads(path.read_text()) for path in (run_dir / "done").glob(f"{step}-*.json")]
    outputs = [marker["outputs"] for marker in sorted(markers, key=lambda marker: float(marker["ended"]))]
    wanted = [found for found in outputs if having.items() <= found.items()]
    return wanted[-1] if wanted else None
