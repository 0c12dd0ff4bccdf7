"""A hop between a client and the proxy that passes everything on as it comes, and keeps what it saw."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})


@dataclass(slots=True)
class Exchange:
    """One request and what was answered."""

    method: str
    path: str
    body: Any
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    """In how many pieces the answer came."""

    def __str__(self) -> str:
        return f"{self.method} {self.path} -> {self.status} {bytes(self.answer[:300])!r}"


class Tap:
    """Exchanges in the order in which they began."""

    def __init__(self, target: str, http: aiohttp.ClientSession) -> None:
        self._target = target
        self._http = http
        self.exchanges: list[Exchange] = []

    @property
    def refused(self) -> list[str]:
        """Exchanges that did not end well, in words."""
        return [str(exchange) for exchange in self.exchanges if exchange.status >= 400 or not exchange.status]

    @property
    def fewest_pieces(self) -> int:
        """In how few pieces an answer came, of those that were asked for as streams."""
        return min(exchange.pieces for exchange in self.exchanges if exchange.body and exchange.body.get("stream"))

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Send the request on and the answer back, piece by piece."""
        body = await request.read()
        exchange = Exchange(request.method, request.path_qs, json.loads(body) if body else None)
        self.exchanges.append(exchange)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        url = self._target + request.path_qs
        async with self._http.request(request.method, url, data=body or None, headers=headers) as answer:
            exchange.status = answer.status
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                exchange.answer += piece
                exchange.pieces += 1
                await response.write(piece)
            await response.write_eof()
            return response


@asynccontextmanager
async def tapped(socket: Path, target: str) -> AsyncIterator[Tap]:
    """A tap that listens on `socket` and passes on to the base URL `target`."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as http:
        tap = Tap(target, http)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", tap.pass_on)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        try:
            yield tap
        finally:
            await runner.cleanup()
