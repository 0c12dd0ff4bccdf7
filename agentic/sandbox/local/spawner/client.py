"""The owner's side of the spawner: starts it, sends requests, hands replies to whoever waits.

The spawner is a bare Python without site-packages. When it is gone, everything that waited fails with
`SpawnerGoneError`, and a new one is started by the next `open`.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import agentic
from agentic.sandbox.local.spawner import wire
from agentic.sandbox.local.spawner.loop import CHUNK_BYTES

BOOT = "import sys; sys.path.insert(0, {root!r}); from agentic.sandbox.local.spawner.server import main; main({rest})"


class SpawnerGoneError(Exception):
    """The helper process ended, or was never up."""


class Client:
    """One running spawner."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes], on_lost: Callable[[str], None]):
        self._connection = connection
        self._process = process
        self._on_lost = on_lost
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[wire.Header, bytes]]] = {}
        self._send_lock = asyncio.Lock()
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="spawner replies")
        self.is_gone = False

    @classmethod
    def open(cls, is_rootless: bool, on_lost: Callable[[str], None]) -> Self:
        """Start a spawner, within a running event loop; `on_lost` hears of each sandbox that dies by itself. Does not
        wait, so that nobody can be cancelled between its start and its owner's knowing it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        root = str(Path(agentic.__file__).parent.parent)
        code = BOOT.format(root=root, rest=f"{theirs.fileno()}, {os.getpid()}, {is_rootless}")
        words = [sys.executable, "-I", "-S", "-c", code]
        with theirs:
            process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env={}, stdin=subprocess.DEVNULL)
        return cls(ours, process, on_lost)

    @property
    def pid(self) -> int:
        """Of the spawner."""
        return self._process.pid

    async def request(
        self, header: Mapping[str, Any], body: bytes = b"", fds: Mapping[str, int] | None = None
    ) -> tuple[wire.Header, bytes]:
        """Send, and wait for the reply. Cancelling an `exec` kills the command."""
        if self.is_gone:
            raise SpawnerGoneError("the spawner is gone")
        request_id = next(self._ids)
        future: asyncio.Future[tuple[wire.Header, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        passed = dict(fds or {})
        frame = wire.encode({**header, "id": request_id, "fds": list(passed)}, body)
        try:
            await self._send(frame, list(passed.values()))
            return await future
        except asyncio.CancelledError:
            if header["op"] == wire.EXEC and not self.is_gone:
                cancel = {"op": wire.CANCEL, "sandbox": header["sandbox"], "command": request_id, "id": 0}
                await self._send(wire.encode(cancel), [])
            raise
        finally:
            del self._waiting[request_id]

    async def _send(self, frame: bytes, fds: list[int]) -> None:
        loop = asyncio.get_running_loop()
        async with self._send_lock:
            try:
                sent = await self._send_with_fds(frame, fds) if fds else 0
                await loop.sock_sendall(self._connection, memoryview(frame)[sent:])
            except OSError as error:
                raise SpawnerGoneError("the spawner is gone") from error

    async def _send_with_fds(self, frame: bytes, fds: list[int]) -> int:
        """Descriptors travel with the first bytes of the frame that names them."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return socket.send_fds(self._connection, [frame[:CHUNK_BYTES]], fds)
            except BlockingIOError:
                is_writable = loop.create_future()
                loop.add_writer(self._connection, is_writable.set_result, None)
                try:
                    await is_writable
                finally:
                    loop.remove_writer(self._connection)

    async def _read(self) -> None:
        decoder = wire.Decoder()
        loop = asyncio.get_running_loop()
        try:
            while chunk := await loop.sock_recv(self._connection, CHUNK_BYTES):
                for header, body in decoder.feed(chunk):
                    self._dispatch(header, body)
        except OSError:
            pass
        finally:
            self.is_gone = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(SpawnerGoneError("the spawner is gone"))

    def _dispatch(self, header: wire.Header, body: bytes) -> None:
        if "id" not in header:
            self._on_lost(header["sandbox"])
            return
        future = self._waiting.get(header["id"])
        if future is not None and not future.done():
            future.set_result((header, body))

    async def close(self) -> None:
        """End the spawner, and with it every sandbox that is left."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._connection.close()
        await asyncio.to_thread(self._process.wait)
