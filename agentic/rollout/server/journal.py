"""The server's memory on disk: one JSON line for each move of a trial.

A line counts once it is on the disk: `append` returns after `fsync`, and lines that come while a disk is busy share the
next one. A line that could not be written whole is taken back, so that a full disk costs the orders that it refuses and
none before them. A line torn by a killed machine is skipped when the journal is read. One process owns a journal; the
kernel's lock on it is gone with its owner.
"""

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentic import json_lines
from agentic.rollout.errors import JournalError

_log = logging.getLogger(__name__)

Row = dict[str, Any]


class Journal:
    """An append-only file with one owner."""

    def __init__(self, path: Path) -> None:
        """Raises JournalError when another process owns it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise JournalError(f"{path} belongs to another server: end it, or name another --state folder") from None
        self._file = self._open()
        self._keep_name()
        self._thread = ThreadPoolExecutor(1, "journal")
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._rows_of: Callable[[], Iterable[Row]] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self.lines = 0
        """Lines in the file; what is more than the live trials need is given back by `rewrite`."""

    def read(self) -> list[Row]:
        """All rows, in order. To be called before the first `append`."""
        rows = json_lines.read(self._path).rows
        self.lines = len(rows)
        return rows

    async def append(self, row: Row) -> None:
        """Returns once the row is on the disk. Raises JournalError when it cannot be, and then it is not there."""
        waiting = asyncio.get_running_loop().create_future()
        self._pending.append((_line(row), waiting))
        self._begin()
        await waiting

    def rewrite(self, rows_of: Callable[[], Iterable[Row]]) -> None:
        """Soon replace the file by what `rows_of` then says, as a whole or not at all. A row that is being appended at
        that time may be in both: reading the same row twice must be like reading it once."""
        self._rows_of = rows_of
        self._begin()

    async def close(self) -> None:
        """Write what is left and give the journal up. May be repeated."""
        if self._flushing is not None:
            await self._flushing
        self._thread.shutdown()
        if self._file >= 0:
            os.close(self._file)
            os.close(self._lock)
            self._file = -1

    def _begin(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._pending or self._rows_of:
            if self._rows_of is not None:
                rows, self._rows_of = [_line(row) for row in self._rows_of()], None
                await self._shorten(rows)
            await self._flush()
        self._flushing = None

    async def _shorten(self, lines: list[bytes]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._replace, lines)
            self.lines = len(lines)
        except OSError as error:
            _log.error("%s cannot be rewritten (%s) and goes on growing", self._path, error.strerror)

    async def _flush(self) -> None:
        batch, self._pending = self._pending, []
        data = b"".join(line for line, _ in batch)
        error: JournalError | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, data)
            self.lines += len(batch)
        except OSError as cause:
            error = JournalError(f"{self._path} cannot be written: {cause.strerror}; free disk space")
        for _, waiting in batch:
            if waiting.done():
                continue
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(None)

    def _write(self, data: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _replace(self, lines: list[bytes]) -> None:
        partial = self._path.with_suffix(".partial")
        with open(partial, "wb", opener=_private) as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        self._keep_name()
        os.close(self._file)
        self._file = self._open()

    def _keep_name(self) -> None:
        """Or a power cut brings back the file that had the name before, and what was added since is gone."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _open(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")  # Ends what a killed machine left, so that it costs no line but its own.
        return file


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # It holds the sessions' keys.


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
