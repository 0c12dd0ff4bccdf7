"""The streams of one command in a container, over one WebSocket: `v5.channel.k8s.io`, or v4 where v5 is not spoken.

Each message is a channel number and bytes. v5 can close standard input alone; v4 cannot, which `can_close_stdin` says
and callers have to work around. Where that is no matter, v4 is the cheaper one. Invariants:
- the end of a command is its status message and nothing else: a stream that ends without one raises
  ExecStreamLostError;
- a command silent for hours stays connected: we ping, and the pongs show that the way is open. No answer is asked for
  while our own sending is held back, since a server that waits for the command to read its input does not read pings.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from enum import IntEnum

import aiohttp
from aiohttp import WSMsgType

from agentic.cluster.errors import ExecStreamLostError, one_line

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PLAIN_PROTOCOLS = PROTOCOLS[1:]
"""For commands whose input need not end. API servers hand v4 through to the node as it is; v5 they take apart and put
together anew, which costs them, the node and the command a few milliseconds of CPU, and large outputs much more."""
CLOSE_CHANNEL = 255
"""v5: the channel named in the next byte ends."""
CHUNK_BYTES = 256 * 1024
"""Of standard input in one message."""
PING_SECONDS = 20.0
"""Below the shortest idle time-out that load balancers commonly have, one minute."""
SILENCE_SECONDS = 75.0
"""Without any message, three pongs included, before a stream counts as broken."""


class Channel(IntEnum):
    """Numbers of the protocol."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    STATUS = 3


@dataclass(frozen=True, slots=True)
class Output:
    """Some of what the command wrote."""

    channel: Channel
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecStatus:
    """How the command ended."""

    exit_code: int | None
    """None when the container's runtime could not run it to its end."""
    message: str


class ExecChannels:
    """A running command's input, outputs and end."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, what: str, ping_seconds: float = PING_SECONDS) -> None:
        self.can_close_stdin = socket.protocol == PROTOCOLS[0]
        self._socket = socket
        self._what = what
        self._is_sending = False
        self._ping_seconds = ping_seconds
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._is_silent = False
        self._timer = self._loop.call_later(ping_seconds, self._ping)
        self._pings = set[asyncio.Task[None]]()

    async def send(self, data: bytes | memoryview) -> None:
        """Some standard input; returns when the connection has taken it."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            await self._send(b"".join((b"\0", view[start : start + CHUNK_BYTES])))

    async def close_stdin(self) -> None:
        """No more input. Only with `can_close_stdin`."""
        await self._send(bytes((CLOSE_CHANNEL, Channel.STDIN)))

    async def _send(self, message: bytes) -> None:
        self._is_sending = True
        try:
            await self._socket.send_bytes(message)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ExecStreamLostError(f"{self._what}: the stream broke while input was sent: {error!r}") from error
        finally:
            self._is_sending = False

    async def receive(self) -> Output | ExecStatus:
        """The next output, or the end. Raises ExecStreamLostError."""
        while True:
            message = await self._socket.receive()
            self._heard_at = self._loop.time()
            if message.type is WSMsgType.BINARY:
                if len(message.data) > 1:
                    return self._read(message.data)
            elif message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type is not WSMsgType.PONG:
                raise ExecStreamLostError(f"{self._what}: {self._why_broken(message)}")

    def _why_broken(self, message: aiohttp.WSMessage) -> str:
        if self._is_silent:
            return f"no sign of life for {SILENCE_SECONDS:.0f} s"
        said = one_line(str(message.extra or message.data or "no reason"))
        return f"the stream broke before the command's end was known (code {self._socket.close_code}, {said})"

    def _read(self, data: bytes) -> Output | ExecStatus:
        if data[0] == Channel.STATUS:
            return read_status(data[1:], self._what)
        if data[0] not in (Channel.STDOUT, Channel.STDERR):
            raise ExecStreamLostError(f"{self._what}: a message on channel {data[0]}, which was not asked for")
        return Output(Channel(data[0]), data[1:])

    def _ping(self) -> None:
        """Now and then; a timer costs a short command nothing, unlike a task."""
        if self._is_sending:
            self._heard_at = self._loop.time()
        else:
            self._is_silent = self._loop.time() - self._heard_at > SILENCE_SECONDS
            task = asyncio.create_task(self._give_up() if self._is_silent else self._send_ping())
            self._pings.add(task)
            task.add_done_callback(self._pings.discard)
        self._timer = self._loop.call_later(self._ping_seconds, self._ping)

    async def _send_ping(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.ping()

    async def _give_up(self) -> None:
        await self._socket.close()

    async def close(self) -> None:
        """Let go of the stream; a command that still runs goes on. May be repeated."""
        self._timer.cancel()
        await self._socket.close()


def read_status(data: bytes, what: str) -> ExecStatus:
    """The status message: success, an exit code, or why there is none."""
    try:
        status = json.loads(data)
    except ValueError:
        raise ExecStreamLostError(f"{what}: a status that is no JSON: {one_line(repr(data))}") from None
    if status.get("status") == "Success":
        return ExecStatus(0, "")
    message = one_line(str(status.get("message", "")))
    causes = (status.get("details") or {}).get("causes") or []
    if status.get("reason") == "NonZeroExitCode":
        for cause in causes:
            if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdigit():
                return ExecStatus(int(cause["message"]), message)
    return ExecStatus(None, message or "no reason given")
