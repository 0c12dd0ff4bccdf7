"""The spawner's event loop, and its connection to the owner."""

import contextlib
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from agentic.sandbox.local.spawner import wire

CHUNK_BYTES = 65536
MAX_FDS = 8
NEVER = float("inf")

Callback = Callable[[], object]


class Loop:
    """Calls back when a descriptor is ready, and asks for the next deadline before it waits."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self.is_done = False

    def stop(self) -> None:
        self.is_done = True

    def watch(self, fd: int, callback: Callback, events: int = selectors.EVENT_READ) -> None:
        """Call back whenever the descriptor is ready; again for the same one replaces callback and events."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def forget(self, fd: int) -> None:
        """Stop watching."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def close(self, fd: int) -> None:
        """Stop watching, and close."""
        self.forget(fd)
        os.close(fd)

    def run_once(self, deadline: float) -> None:
        """Wait until something is ready or the deadline (of the monotonic clock) passes."""
        timeout = None if deadline == NEVER else max(0.0, deadline - time.monotonic())
        for key, _ in self._selector.select(timeout):
            # An earlier callback of this round may have closed the descriptor, and its number may be in use again.
            if self._selector.get_map().get(key.fd) is key:
                key.data()


class Channel:
    """Frames from and to the owner; descriptors travel beside the frames that announce them."""

    def __init__(self, connection: socket.socket, loop: Loop, handle: Callable[[wire.Header, bytes], None]) -> None:
        self._connection = connection
        self._loop = loop
        self._handle = handle
        self._decoder = wire.Decoder()
        self._fds: deque[int] = deque()
        self._outgoing = bytearray()
        connection.setblocking(False)
        loop.watch(connection.fileno(), self._receive)

    def take_fd(self) -> int:
        """The next descriptor that the owner passed."""
        return self._fds.popleft()

    def reply(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queue one frame, and send what the socket takes."""
        self._outgoing += wire.encode(header, body)
        self._send()

    def _receive(self) -> None:
        try:
            chunk, fds, _, _ = socket.recv_fds(self._connection, CHUNK_BYTES, MAX_FDS)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk, fds = b"", []
        self._fds.extend(fds)
        if not chunk:
            self._loop.stop()
        for header, body in self._decoder.feed(chunk):
            self._handle(header, body)

    def _send_then_receive(self) -> None:
        self._send()
        self._receive()

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._loop.stop()
            return
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.watch(
                self._connection.fileno(), self._send_then_receive, selectors.EVENT_READ | selectors.EVENT_WRITE
            )
        else:
            self._loop.watch(self._connection.fileno(), self._receive)
