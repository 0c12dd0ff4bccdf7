"""Keeps a second proxy off a journal's folder: two would hand out the same keys and write into the same files.

The lock is the kernel's and ends with the last process that holds its descriptor, however that ends, so nothing is left
to clean up. A proxy that is started while its predecessor still ends waits a little.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from pathlib import Path

from .errors import JournalError

logger = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
"""How long a predecessor may take to end; a fleet's workers outlive a killed supervisor by a few seconds."""
TRY_SECONDS = 0.1
"""Between two attempts."""


class FolderLock:
    """One holder at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "proxy.lock"
        self._descriptor: int | None = None

    async def acquire(self) -> int:
        """Hold the folder, and give the descriptor that does; JournalError if somebody else goes on holding it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise JournalError(f"cannot open {self._path}: {error.strerror}: change journal_directory") from error
        try:
            await self._lock(descriptor)
        except BaseException:
            self.release()
            raise
        return descriptor

    def release(self) -> None:
        """Let go; harmless if it is not held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # where there are no locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may hold the descriptor too
            os.close(self._descriptor)
            self._descriptor = None

    async def _lock(self, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if loop.time() > deadline:
                    raise JournalError(
                        f"another proxy works on {self._path.parent}: stop it, or use another journal_directory"
                    ) from error
            except OSError as error:  # some network file systems have no locks
                logger.warning("%s cannot be locked (%s): let no other proxy use it", self._path, error.strerror)
                return
            else:
                return
            await asyncio.sleep(TRY_SECONDS)
