"""What a step says while it runs: its log on the volume, its progress, its last words."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from agentic.files import write_json

MESSAGE_VARIABLE = "AGENTIC_TERMINATION_LOG"
"""File for the last words; in a pod the kubelet's, so that Argo shows them at the node."""

MESSAGE_DEFAULT = "/dev/termination-log"


class _Tee:
    """Writes to a stream and to the log."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream = stream
        self._log = log

    def write(self, text: str) -> int:
        self._log.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._log.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def logged(log: Path) -> Iterator[None]:
    """Copy what is printed to the log, unless standard output already goes to a file beside it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if _goes_to_folder(log.parent):
        yield
        return
    before = sys.stdout, sys.stderr
    with log.open("a", buffering=1) as file:
        sys.stdout, sys.stderr = (cast(TextIO, _Tee(stream, file)) for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def _goes_to_folder(folder: Path) -> bool:
    try:
        return Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink().parent == folder.resolve()
    except (OSError, ValueError):
        return False


class Progress:
    """Progress of a running step, for the local display and for Argo."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.message = ""
        """Of the last report."""

    def __call__(self, done: int, total: int, message: str) -> None:
        """Report; the last report stands, and its message becomes the step's summary."""
        self.message = message
        report = {"done": done, "total": total, "message": message, "updated": time.time()}
        write_json(self._path, report)
        argo = os.environ.get("ARGO_PROGRESS_FILE")
        if argo and 0 <= done <= total and total > 0:
            Path(argo).write_text(f"{done}/{total}\n")


def leave_message(line: str) -> None:
    """Leave the last words where the kubelet, or the local runner, picks them up."""
    path = Path(os.environ.get(MESSAGE_VARIABLE) or MESSAGE_DEFAULT)
    if MESSAGE_VARIABLE in os.environ or path.exists():
        path.write_text(line[:2000] + "\n")
