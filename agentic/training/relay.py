"""Shows what another process appends to a log while it does."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 0.5
_PIECE_BYTES = 1 << 20


@contextlib.asynccontextmanager
async def relayed(log: Path, write: Callable[[str], object]) -> AsyncIterator[None]:
    """Give `write` all that is appended to the log from now on, by whole lines; the rest of it at the end.

    A log that cannot be read at the moment is read later: showing it is no reason for the work to fail.
    """
    relay = _Relay(log, write)
    task = asyncio.create_task(relay.run(), name=f"relay of {log.name}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        relay.look(is_last=True)


class _Relay:
    def __init__(self, log: Path, write: Callable[[str], object]) -> None:
        self._log = log
        self._write = write
        self._offset = log.stat().st_size if log.is_file() else 0

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(POLL_SECONDS)

    def look(self, *, is_last: bool = False) -> None:
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            self._pass_on(file, is_last=is_last)

    def _pass_on(self, file: BinaryIO, *, is_last: bool) -> None:
        # One that is shorter than what was shown of it was begun anew.
        self._offset = 0 if file.seek(0, os.SEEK_END) < self._offset else self._offset
        file.seek(self._offset)
        while piece := file.read(_PIECE_BYTES):
            # A piece without an end of line is a line longer than any reader wants: it goes as it is.
            whole = piece if is_last or b"\n" not in piece else piece[: piece.rindex(b"\n") + 1]
            if b"\n" not in piece and len(piece) < _PIECE_BYTES and not is_last:
                return
            self._offset += len(whole)
            file.seek(self._offset)
            self._write(whole.decode(errors="replace"))
