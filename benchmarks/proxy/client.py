"""An HTTP client that costs little: one connection, one request at a time, bytes in and bytes out.

A load generator on the same machine takes its processor time from what it measures, so it does no more than HTTP/1.1
needs: heads are built once, bodies are joined from parts, answers are found by length or by chunks.
"""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer."""

    status: int
    body: bytes


class Connection(asyncio.Protocol):
    """A connection that is made again when the server has closed it between two requests."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._prefix = parts.path
        lines = [f"Host: {parts.netloc}", "Content-Type: application/json", *(f"{k}: {v}" for k, v in headers.items())]
        self._headers = "\r\n".join(lines)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: asyncio.Future[Answer] | None = None

    async def post(self, path: str, body: bytes) -> Answer:
        """Send a request and wait for the whole answer; asks again, once, if the server had just closed."""
        head = f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}\r\nContent-Length: {len(body)}\r\n\r\n"
        for attempt in range(2):
            if self._transport is None or self._transport.is_closing():
                self._received.clear()
                await asyncio.get_running_loop().create_connection(lambda: self, self._host, self._port)
            if self._transport is None:
                raise ConnectionError("no transport")
            self._waiting = asyncio.get_running_loop().create_future()
            self._transport.writelines([head.encode(), body])
            try:
                return await self._waiting
            except ConnectionResetError:
                if attempt:
                    raise
        raise ConnectionError("unreachable")

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        answer = _whole(self._received)
        if answer is not None and self._waiting is not None and not self._waiting.done():
            self._received.clear()
            self._waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError("the server closed"))


def _whole(received: bytearray) -> Answer | None:
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(received[:end]).lower()
    status = int(head[9:12])
    if b"transfer-encoding: chunked" in head:
        return Answer(status, bytes(received[end + 4 :])) if received.endswith(b"\r\n0\r\n\r\n") else None
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    if len(received) < end + 4 + length:
        return None
    return Answer(status, bytes(received[end + 4 : end + 4 + length]))
