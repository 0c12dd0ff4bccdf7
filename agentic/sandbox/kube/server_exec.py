"""Commands in a sandbox by its own exec server, at the pod's address: the API server has no part in them.

The server is `images/exec-server`, process 1 of a sandbox whose image has it. It serves nobody until it has a key; we
make one for each sandbox and hand it in once through the API server, which knows who we are. Over WebSocket exec this
adds what a server of our own can give: a command goes on when its connection breaks, and we take it up where it was.
The server forgets no output but what we say that we have, and holds a command back that is too far ahead of that; so
nothing is lost in the buffers of a connection that breaks, however large they are.
Connections are plain HTTP within the cluster's network; whoever can read that network can read commands, so it is for
clusters whose network is trusted or encrypted.
"""

import asyncio
import contextlib
import json
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from agentic.sandbox.base import ExecResult
from agentic.sandbox.errors import SandboxLostError, SandboxStartError
from agentic.sandbox.kube.execution import ExecRequest, SandboxExec
from agentic.sandbox.kube.manifests import PROGRAM
from agentic.sandbox.local.spawner.output import Capture

PORT = 7070
INSTANCE = "X-Exec-Server"
OUT, ERR, END, ALIVE, FED = 1, 2, 3, 4, 5
SILENCE_SECONDS = 45.0
"""Three signs of life that did not come: the connection is dead."""
RECONNECT_SECONDS = 20.0
"""How long a sandbox may be out of reach; its server waits three times as long before it ends a command."""
RECEIVE_BYTES = 256 * 1024
"""Of a connection: so little is sent again when it breaks."""
ACKNOWLEDGE_BYTES = 1024 * 1024
"""Taken since the server was told last: tell it again. A quarter of what it keeps, so that it is seldom held back."""
ACKNOWLEDGE_SECONDS = 5.0
"""For one such request; then the next."""
ONE_PIECE_BYTES = 64 * 1024
LATE_SECONDS = 30.0
"""The server ends a command that is out of time; this much later it has not, and is lost."""
BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError, TimeoutError)


class SinkFailedError(Exception):
    """Whoever takes the output has given up, which is no matter of the connection."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class ExecServers:
    """The connections to all exec servers of this process."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, socket_factory=_small_socket)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=RECEIVE_BYTES)
        return self._session

    async def connect(
        self, name: str, host: str, through: SandboxExec, *, port: int = PORT, program: tuple[str, ...] = (PROGRAM,)
    ) -> "ServerExec":
        """Hand a key to the server of a sandbox that nobody has had before. Raises SandboxStartError."""
        key = secrets.token_hex(32)
        result = await through.run(ExecRequest([*program, "key"], 30.0, stdin=key.encode()))
        if result.exit_code != 0:
            raise SandboxStartError(f"sandbox {name}: its exec server took no key: {result.error_text.strip()[-300:]}")
        return ServerExec(self, name, f"http://{host}:{port}", key)

    async def close(self) -> None:
        """May be repeated."""
        if self._session is not None:
            await self._session.close()


def address_of(pod: Mapping[str, Any]) -> str:
    """A pod's address as a part of a URL. Raises SandboxStartError."""
    address = str(pod.get("status", {}).get("podIP", ""))
    if not address:
        raise SandboxStartError("a sandbox's pod has no address for its exec server to be reached at")
    return f"[{address}]" if ":" in address else address


def _small_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    return made


@dataclass(slots=True)
class Following:
    """How far a command has been followed."""

    request: ExecRequest
    id: str
    stdout: Capture
    stderr: Capture
    place: int = 0
    """In the server's journal."""
    acknowledged: int = 0
    """The place that the server knows of."""
    acknowledging: asyncio.Task[None] | None = None
    has_started: bool = False
    has_sent_input: bool = False
    """Whether the command can do without us."""
    ending: dict[str, Any] | None = None
    buffer: bytearray = field(default_factory=bytearray)

    async def take(self, data: bytes) -> None:
        """Some of the journal."""
        self.buffer += data
        start = 0
        while len(self.buffer) - start >= 5:
            kind, length = struct.unpack_from(">BI", self.buffer, start)
            if len(self.buffer) - start < 5 + length:
                break
            content = bytes(memoryview(self.buffer)[start + 5 : start + 5 + length])
            start += 5 + length
            await self._frame(kind, content)
        del self.buffer[:start]

    async def _frame(self, kind: int, content: bytes) -> None:
        if kind == ALIVE:
            return
        self.place += 5 + len(content)
        if kind == OUT and self.request.sink is not None:
            try:
                await self.request.sink(content)
            except BROKEN as error:
                raise SinkFailedError(error) from error
        elif kind == OUT:
            self.stdout.feed(content)
        elif kind == ERR:
            self.stderr.feed(content)
        elif kind == FED:
            self.has_sent_input = True
        elif kind == END:
            self.ending = json.loads(content)

    @property
    def is_due(self) -> bool:
        """Whether the server should hear how far we are."""
        return self.place - self.acknowledged >= ACKNOWLEDGE_BYTES

    async def close(self) -> None:
        if self.acknowledging is not None:
            self.acknowledging.cancel()
            await asyncio.gather(self.acknowledging, return_exceptions=True)

    def result(self) -> ExecResult:
        ending = self.ending or {}
        truncated = self.stdout.is_truncated or self.stderr.is_truncated
        return ExecResult(
            int(ending["exit_code"]), self.stdout.value(), self.stderr.value(), bool(ending["timed_out"]), truncated
        )


class ServerExec:
    """Runs commands by one sandbox's server."""

    def __init__(self, servers: ExecServers, name: str, address: str, key: str) -> None:
        self._servers, self._name, self._address = servers, name, address
        self._headers = {"Authorization": f"Bearer {key}"}
        self._instance: str | None = None
        self.reconnect_seconds = RECONNECT_SECONDS

    def move(self, address: str) -> None:
        """Reach the same server at another address from now on."""
        self._address = address

    async def run(self, request: ExecRequest) -> ExecResult:
        request.require_names()
        limit = request.output_limit_bytes
        following = Following(request, secrets.token_hex(8), Capture(limit), Capture(limit))
        following.has_sent_input = request.stdin == b""
        try:
            async with asyncio.timeout(request.timeout_seconds + LATE_SECONDS):
                while following.ending is None:
                    await self._follow(following)
        except TimeoutError:
            await self._kill(following)
            raise SandboxLostError(f"sandbox {self._name} is lost: a command did not end in time") from None
        except SandboxLostError:
            raise
        except SinkFailedError as error:
            await self._kill(following)
            raise error.cause from error
        except BaseException:
            await asyncio.shield(self._kill(following))
            raise
        finally:
            await following.close()
        return following.result()

    async def _follow(self, following: Following) -> None:
        """Until the end, or until the connection breaks in a way that lets us go on."""
        ends_at = time.monotonic() + self.reconnect_seconds
        while True:
            place = following.place
            try:
                await (self._resume(following) if following.has_started else self._start(following))
                return
            except BROKEN as error:
                if not following.has_started and not isinstance(error, aiohttp.ClientConnectorError):
                    # It may have begun all the same; asking by its id tells.
                    following.has_started = following.has_sent_input
                if (following.has_started and not following.has_sent_input) or time.monotonic() > ends_at:
                    raise SandboxLostError(f"sandbox {self._name} is lost: out of reach: {error!r}") from error
                if following.place > place:
                    ends_at = time.monotonic() + self.reconnect_seconds
                following.buffer.clear()
                await asyncio.sleep(0.2)

    async def _start(self, following: Following) -> None:
        url = f"{self._address}/commands/{following.id}"
        async with self._servers.session.post(url, data=body_of(following), headers=self._headers) as response:
            await self._require(response)
            following.has_started = True
            await self._read(response, following)

    async def _resume(self, following: Following) -> None:
        url = f"{self._address}/commands/{following.id}?from={following.place}"
        async with self._servers.session.get(url, headers=self._headers) as response:
            if response.status == 404 and following.place == 0 and isinstance(following.request.stdin, bytes):
                following.has_started = False  # It never began.
                return
            await self._require(response)
            await self._read(response, following)

    async def _require(self, response: aiohttp.ClientResponse) -> None:
        instance = response.headers.get(INSTANCE)
        if response.status != 200 or instance is None or instance != (self._instance or instance):
            said = (await response.text())[:200].strip() if response.status != 200 else "its server is another one"
            raise SandboxLostError(f"sandbox {self._name} is lost: {said} ({response.status})")
        self._instance = instance

    async def _read(self, response: aiohttp.ClientResponse, following: Following) -> None:
        while following.ending is None:
            data = await response.content.readany()
            if not data:
                raise ConnectionResetError("the stream ended before the command")
            await following.take(data)
            if following.is_due and (following.acknowledging is None or following.acknowledging.done()):
                following.acknowledging = asyncio.create_task(self._acknowledge(following))

    async def _acknowledge(self, following: Following) -> None:
        """Until the server knows well enough how far we are. Beside the reading, which says when it is out of reach."""
        timeout = aiohttp.ClientTimeout(total=ACKNOWLEDGE_SECONDS)
        while following.is_due:
            place = following.place
            url = f"{self._address}/commands/{following.id}/seen?place={place}"
            try:
                async with self._servers.session.post(url, headers=self._headers, timeout=timeout) as response:
                    await response.read()
            except BROKEN:
                await asyncio.sleep(0.2)
            else:
                following.acknowledged = place

    async def _kill(self, following: Following) -> None:
        with contextlib.suppress(*BROKEN):
            async with asyncio.timeout(10):
                url = f"{self._address}/commands/{following.id}"
                await (await self._servers.session.delete(url, headers=self._headers)).read()

    async def end_commands(self) -> None:
        try:
            async with self._servers.session.delete(f"{self._address}/commands", headers=self._headers) as response:
                if response.status != 204:
                    raise SandboxLostError(f"sandbox {self._name} is lost: {(await response.text()).strip()}")
        except BROKEN as error:
            raise SandboxLostError(f"sandbox {self._name} is lost: out of reach: {error!r}") from error

    async def close(self) -> None:
        """Connections are shared by all sandboxes."""


def body_of(following: Following) -> bytes | AsyncIterator[bytes]:
    """A line that says what to run, then standard input. In one piece where possible: such a connection is used again
    for the next command."""
    request = following.request
    is_line = isinstance(request.command, str)
    spec = {
        "mark": following.id,
        "words": [] if is_line else list(request.command),
        "script": (request.command or ":") if is_line else "",
        "cwd": request.cwd,
        "env": dict(request.env),
        "user": request.user or "",
        "timeout_seconds": request.timeout_seconds,
    }
    line = json.dumps(spec).encode() + b"\n"
    if isinstance(request.stdin, bytes) and len(request.stdin) <= ONE_PIECE_BYTES:
        return line + request.stdin
    return _pieces(line, request.stdin)


async def _pieces(line: bytes, stdin: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    yield line
    if isinstance(stdin, bytes):
        for start in range(0, len(stdin), RECEIVE_BYTES):
            yield stdin[start : start + RECEIVE_BYTES]
        return
    async for chunk in stdin:
        yield chunk
