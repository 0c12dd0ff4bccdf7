"""A request handed to the worker that owns its session, and the answer passed through as it comes.

The request's body is read first, within the plane's limit, so an owner that is just being restarted can be tried again,
for `owner_wait_seconds`. Once the request has been sent it is never sent again: whether the owner took it up cannot be
known, and the client's own retry, which names itself as one, is what finds the journalled answer. A client that hangs
up cancels the handler, which closes the connection to the owner, which is how the owner learns of it. An answer that
breaks off is broken off towards the client too, never ended as if it were whole. A client that sends or takes nothing
for too long is taken for gone, as the owner would do.

The sockets lie in a folder that only this user can enter, and requests carry their keys with them: the owner checks
them again.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..errors import WorkerUnavailable
from ..rim import read_within, write_within
from ..settings import ProxySettings

type Plane = Literal["agent", "control"]

HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""Headers of one connection, which say nothing about the next."""
REQUEST_OWN = HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect"}
"""Left out as well: the body is sent decoded and whole."""
ANSWER_OWN = HOP_BY_HOP | {"content-length"}
"""Of an answer: its length is said anew."""
WHOLE_BYTES = 1 << 16
"""An answer of a known length up to here is taken whole, and written at once."""
RETRY_SECONDS = 0.05
"""Between two attempts to reach an owner."""


def socket_path(folder: Path, plane: Plane, slot: int) -> Path:
    """Where a worker listens for the others."""
    return folder / f"{plane}-{slot}.sock"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one worker answered."""

    status: int
    content_type: str
    body: bytes


class Peers:
    """The workers of a fleet as seen from one of them. Closed by its owner."""

    def __init__(self, folder: Path, slots: int, settings: ProxySettings) -> None:
        self.slots = slots
        self._folder = folder
        self._settings = settings
        self._clients: dict[tuple[Plane, int], aiohttp.ClientSession] = {}

    async def forward(self, http: web.Request, plane: Plane, slot: int) -> web.StreamResponse:
        """The owner's answer to a request, written to the client as it arrives."""
        body = await self._read(http)
        async with await self._send(http, plane, slot, body) as answer:
            headers = _kept(answer.headers, ANSWER_OWN)
            if answer.content_length is not None and answer.content_length <= WHOLE_BYTES:
                body = await _whole(answer, slot)
                whole = web.Response(body=body, status=answer.status, reason=answer.reason, headers=headers)
                await whole.prepare(http)
                await self._write(http, whole.write_eof())
                return whole
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
            response.content_length = answer.content_length
            try:
                await response.prepare(http)
                async for data in answer.content.iter_any():
                    await self._write(http, response.write(data))
            except aiohttp.ClientError:
                if http.transport is not None:
                    http.transport.abort()
                raise ConnectionResetError(f"worker {slot} broke its answer off") from None
            await self._write(http, response.write_eof())
            return response

    async def ask(self, http: web.Request, plane: Plane, slot: int) -> Answer:
        """A worker's whole answer to a request."""
        async with await self._send(http, plane, slot, await self._read(http)) as answer:
            return Answer(answer.status, answer.headers.get("Content-Type", ""), await _whole(answer, slot))

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()

    async def _read(self, http: web.Request) -> bytes:
        return await read_within(http, self._settings.read_timeout_seconds)

    async def _write(self, http: web.Request, writing: Awaitable[None]) -> None:
        await write_within(http, writing, self._settings.write_timeout_seconds)

    async def _send(self, http: web.Request, plane: Plane, slot: int, body: bytes) -> aiohttp.ClientResponse:
        deadline = asyncio.get_running_loop().time() + self._settings.owner_wait_seconds
        client = self._client(plane, slot)
        while True:
            try:
                return await client.request(
                    http.method,
                    URL(f"http://worker{http.raw_path}", encoded=True),
                    data=body,
                    headers=_kept(http.headers, REQUEST_OWN),
                    allow_redirects=False,
                )
            except aiohttp.ClientConnectorError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise _unavailable(slot) from error
            except aiohttp.ClientError as error:
                raise _unavailable(slot) from error
            await asyncio.sleep(RETRY_SECONDS)

    def _client(self, plane: Plane, slot: int) -> aiohttp.ClientSession:
        client = self._clients.get((plane, slot))
        if client is None:
            client = self._clients[plane, slot] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket_path(self._folder, plane, slot)), limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            )
        return client


async def _whole(answer: aiohttp.ClientResponse, slot: int) -> bytes:
    try:
        return await answer.read()
    except aiohttp.ClientError as error:
        raise _unavailable(slot) from error


def _kept(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    return CIMultiDict(_each(headers, dropped))


def _each(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _unavailable(slot: int) -> WorkerUnavailable:
    return WorkerUnavailable(f"the process that holds this session (slot {slot}) is being restarted: ask again")
