"""Files of JSON lines that several processes append to and any of them may be killed over.

A line is one `write` to a file opened for appending, which the kernel does not interleave. A line that does not parse
can only be the trace of a machine that died or a disk that filled; it may stand anywhere, since others went on after.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Rows(NamedTuple):
    """What a file holds."""

    rows: list[dict[str, Any]]
    torn: int
    """Lines that did not parse."""
    end: int
    """Offset behind the last whole line; reading on from here sees what is appended later."""


def append(path: Path, lines: Sequence[str]) -> None:
    """Add lines in one write; the folder is made if need be.

    Raises:
        OSError: the lines do not fit on the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data  # ends what a dead process left, so that it costs no line but its own
        written = os.write(file, data)
    finally:
        os.close(file)
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes fit into {path}: free disk space")


def read(path: Path, start: int = 0) -> Rows:
    """All rows from an offset on; none when there is no file. A last line without its end is left for later."""
    if not path.exists():
        return Rows([], 0, start)
    rows, torn, end = [], 0, start
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            else:
                torn += 1
    return Rows(rows, torn, end)
