"""HTTP to the API server: one connection pool, paced, retried, refusals turned into errors.

What is retried, with growing pauses and the server's own Retry-After, until `retry_seconds` are over: 429, 5xx,
time-outs and broken connections; and a 401 once, with credentials read anew. Nothing else is. No threads.
"""

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import aiohttp

from agentic.cluster.connector import SparingConnector
from agentic.cluster.credentials import Access, Credentials
from agentic.cluster.errors import ApiError, ApiUnavailableError, CredentialsError, error_of, one_line
from agentic.cluster.settings import KubeClientSettings

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
USER_AGENT = "agentic-rl"
LONGEST_LINE_BYTES = 16 * 1024 * 1024
"""Of a stream; etcd's own limit for an object, which an event carries, is a tenth of it."""
BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError, UnicodeError)
"""What a connection that fails on the way raises, or that leads to something which speaks no HTTP. The last is for a
host name that cannot be one."""


class Pace:
    """A token bucket: `burst` at once, then so many per second."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()

    def take(self) -> float:
        """Take one token; returns how long to wait before using it."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second) - 1
        self._filled_at = now
        return max(0.0, -self._tokens / self._per_second)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, and what it is called in messages."""

    what: str
    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content_type: str = "application/json"
    is_retried_on: Callable[[ApiError], bool] = field(default=lambda error: False)
    """Further refusals that pass by themselves, for this request."""


class Retries:
    """The pauses between the tries of one request."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at = clock() + seconds
        self._pause = FIRST_PAUSE_SECONDS
        self.count = 0

    async def pause(self, error: ApiError, retry_after_seconds: float = 0.0) -> None:
        """Wait before the next try, or raise the error when time is over."""
        wait = max(self._pause * random.uniform(0.5, 1.0), retry_after_seconds)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        if self._clock() + wait > self._ends_at:
            raise error
        self.count += 1
        await asyncio.sleep(wait)


TLS_END_SECONDS = 5.0
"""aiohttp does not wait for the ends of its TLS connections; the event loop should outlive them, but not for ever."""


class Transport:
    """The way to one API server, for one account."""

    def __init__(self, credentials: Credentials, settings: KubeClientSettings) -> None:
        self.settings = settings
        self._credentials = credentials
        self._pace = Pace(settings.requests_per_second, settings.request_burst)
        self._gate = asyncio.Semaphore(settings.max_concurrent_requests)
        self._session: aiohttp.ClientSession | None = None
        self._connector: SparingConnector | None = None
        self._sockets = WeakSet[socket.socket]()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._connector = SparingConnector(
                limit=0, keepalive_timeout=60, socket_factory=self._make_socket, happy_eyeballs_delay=None
            )
            self._session = aiohttp.ClientSession(
                connector=self._connector,
                headers={"User-Agent": USER_AGENT},
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),
            )
        return self._session

    def open_spare(self) -> None:
        """A connection for whoever comes next, after one was upgraded and so used up."""
        if self._connector is not None and not self._connector.closed:
            self._connector.open_spare()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The right to have one request under way."""
        async with self._gate:
            wait = self._pace.take()
            if wait:
                await asyncio.sleep(wait)
            yield

    async def access(self, *, is_refused: bool = False) -> Access:
        return await self._credentials.access(is_refused=is_refused)

    async def json(self, call: Call) -> Any:
        """The answer's body. Raises an error of `agentic.cluster.errors`."""
        return await self._send(call, lambda text, _: json.loads(text or "{}"))

    async def text(self, call: Call) -> str:
        return await self._send(call, lambda text, _: text)

    async def date(self, call: Call) -> str:
        """The answer's Date header, empty without one: the server's clock, or that of a proxy on the way."""
        return await self._send(call, lambda _, headers: headers.get("Date", ""))

    @asynccontextmanager
    async def stream(
        self, call: Call, idle_seconds: float | None, accept: str = "application/json, */*"
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of an answer that comes little by little; not retried, since its reader knows where to go on."""
        async with self.turn():
            access = await self.access()
        try:
            async with self.session.get(
                access.server + call.path,
                params=list(call.params),
                read_bufsize=LONGEST_LINE_BYTES,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=idle_seconds),
                headers={**access.headers, "Accept": accept},
                ssl=access.tls,
                proxy=access.proxy,
                server_hostname=access.server_name,
            ) as response:
                if response.status != 200:
                    raise error_of(response.status, as_status(await response.text()), call.what)
                yield response.content
        except BROKEN as problem:
            raise unreachable(call.what, problem) from problem

    async def _send[T](self, call: Call, read: Callable[[str, Mapping[str, str]], T]) -> T:
        retries, is_refused = Retries(self.settings.retry_seconds), False
        while True:
            pause_seconds = 0.0
            try:
                async with self.turn():
                    status, headers, text = await self._try(call, is_refused)
            except BROKEN as problem:
                error: ApiError = unreachable(call.what, problem)
            else:
                if status < 300:
                    try:
                        return read(text, headers)
                    except ValueError:
                        error = ApiUnavailableError(f"{call.what}: the answer is no JSON: {one_line(text)[:200]}")
                        await retries.pause(error)
                        continue
                error, pause_seconds = error_of(status, as_status(text), call.what), retry_after(headers)
                if isinstance(error, CredentialsError) and not is_refused:
                    is_refused = True
                    continue
                if not isinstance(error, ApiUnavailableError) and not call.is_retried_on(error):
                    raise error
            await retries.pause(error, pause_seconds)

    async def _try(self, call: Call, is_refused: bool) -> tuple[int, Mapping[str, str], str]:
        access = await self.access(is_refused=is_refused)
        async with self.session.request(
            call.method,
            access.server + call.path,
            params=list(call.params),
            data=None if call.body is None else json.dumps(call.body, separators=(",", ":")).encode(),
            headers={**access.headers, "Content-Type": call.content_type, "Accept": "application/json, */*"},
            timeout=aiohttp.ClientTimeout(total=self.settings.request_timeout_seconds),
            ssl=access.tls,
            proxy=access.proxy,
            server_hostname=access.server_name,
        ) as response:
            return response.status, response.headers, await response.text(errors="replace")

    async def close(self) -> None:
        if self._session is not None and self._connector is not None and not self._session.closed:
            await self._connector.end()
            await self._session.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(TLS_END_SECONDS):
                    while any(made.fileno() >= 0 for made in self._sockets):
                        await asyncio.sleep(0.01)

    def _make_socket(self, address: Any) -> socket.socket:
        made = _keepalive_socket(address)
        self._sockets.add(made)
        return made


def _keepalive_socket(address: Any) -> socket.socket:
    """A connection whose other end has vanished is noticed within a minute."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    return made


def unreachable(what: str, problem: BaseException) -> ApiUnavailableError:
    return ApiUnavailableError(f"{what}: the API server cannot be reached: {one_line(repr(problem))}")


def as_status(text: str) -> dict[str, Any]:
    """The Status object of a refusal; proxies on the way answer in plain text."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"message": text}


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the server asks for; the other form, a date, is not used by API servers."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else 0.0
