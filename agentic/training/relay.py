"""Shows what another process appends to a log while it does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

POLL_SECONDS = 0.5
_PIECE_BYTES = 1 << 20


@contextlib.asynccontextmanager
async def relayed(log: Path, write: Callable[[str], object]) -> AsyncIterator[None]:
    """Give `write` all that is appended to the log from now on, by whole lines; the rest of it at the end."""
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
        self._offset = log.stat().st_size if log.exists() else 0

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(POLL_SECONDS)

    def look(self, *, is_last: bool = False) -> None:
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._offset)
            while piece := file.read(_PIECE_BYTES):
                # A piece without an end of line is a line longer than any reader wants: it goes as it is.
                whole = piece if is_last or b"\n" not in piece else piece[: piece.rindex(b"\n") + 1]
                if b"\n" not in piece and len(piece) < _PIECE_BYTES and not is_last:
                    return
                self._offset += len(whole)
                file.seek(self._offset)
                self._write(whole.decode(errors="replace"))
