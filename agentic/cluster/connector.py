"""Connections to the API server, with one ready for the next command.

An upgrade uses its connection up, so that every command in a pod would begin with the handshakes of TCP and TLS. So
once a connection was upgraded another like it is opened, beside the command's own work, and lies in the pool. One is
enough for commands that follow each other; those that come at the same moment open their own, as they would anyway.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, override

import aiohttp
from aiohttp import hdrs

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


class SparingConnector(aiohttp.TCPConnector):
    """A pool of connections that can be told to open one more."""

    _like: tuple[aiohttp.ClientRequest, aiohttp.ClientTimeout] | None = None
    _opening: asyncio.Task[None] | None = None

    @override
    async def connect(
        self, req: aiohttp.ClientRequest, traces: list["Trace"], timeout: aiohttp.ClientTimeout
    ) -> "Connection":
        connection = await super().connect(req, traces, timeout)
        if hdrs.UPGRADE in req.headers and req.proxy is None:
            self._like = (req, timeout)
        return connection

    def open_spare(self) -> None:
        """Soon, as the last one that was asked to upgrade; nothing when one lies ready or is on its way."""
        if self._like is not None and (self._opening is None or self._opening.done()):
            self._opening = asyncio.create_task(self._open(*self._like), name="open a spare connection")

    async def _open(self, req: aiohttp.ClientRequest, timeout: aiohttp.ClientTimeout) -> None:
        """Whoever needs it meets the same trouble, and says so."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            (await super().connect(req, [], timeout)).release()

    async def end(self) -> None:
        """Open no more."""
        self._like = None
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
