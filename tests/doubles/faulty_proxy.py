"""A reverse proxy in front of an API server, real or in memory, that makes it fail: for what a real server never does
on demand.

    async with FaultyProxy(Access("https://127.0.0.1:6443", tls=context)) as proxy:
        client = KubeClient(FixedCredentials(replace(access, server=proxy.address, tls=True)))
        proxy.faults.append(Fault(path="/exec", status=503, times=3))
        proxy.error_rate = 0.05

Bodies, watches and WebSockets pass as streams; the caller's Authorization passes on. Faults by rule are those of
`kube_api.Fault`; by chance, from a seed: 429 with Retry-After, 500, 503, a connection broken before or after the server
did its work, and a watch that ends with 410.
"""

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web
from kube_api import Fault, answer, line
from kube_store import Refusal
from yarl import URL

from agentic.cluster.credentials import Access

PASSED_ON = ("Authorization", "Content-Type", "Accept", "User-Agent")
BY_CHANCE = ("429", "500", "503", "broken before", "broken after")


@dataclass
class FaultyProxy:
    """One proxy; an async context."""

    upstream: Access
    faults: list[Fault] = field(default_factory=list)
    error_rate: float = 0.0
    """Share of the requests that fail, watches and commands included."""
    watch_expiry_rate: float = 0.0
    """Share of a watch's lines after which it ends with 410."""
    seed: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    address: str = ""
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "FaultyProxy":
        self._dice = random.Random(self.seed)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, max_line_size=1 << 20, max_field_size=1 << 20, access_log=None, shutdown_timeout=0.2
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = next((fault for fault in self.faults if fault.fits(request)), None) or self._by_chance()
        if fault is None:
            return await self._pass(request)
        fault.times, fault.seen = fault.times - 1, fault.seen + 1
        self.injected[f"{fault.status or 'broken'}{' after' if fault.after else ''}"] += 1
        await asyncio.sleep(fault.delay_seconds)
        if fault.delay_seconds and not fault.status:
            return await self._pass(request)
        if fault.after and "Upgrade" in request.headers:
            await self._open_and_drop(request)
        elif fault.after and "watch" not in request.query:
            await self._forward(request)
        if not fault.status:
            return break_off(request)
        failed = answer(Refusal(fault.status, "Injected", fault.message))
        if fault.retry_after_seconds is not None:
            failed.headers["Retry-After"] = str(fault.retry_after_seconds)
        return failed

    def _by_chance(self) -> Fault | None:
        if self._dice.random() >= self.error_rate:
            return None
        kind = self._dice.choice(BY_CHANCE)
        if kind.isdigit():
            return Fault(status=int(kind), retry_after_seconds=1 if kind == "429" else None)
        return Fault(after=kind == "broken after")

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if "Upgrade" in request.headers:
            return await self._pass_socket(request)
        if request.query.get("watch") in ("true", "1"):
            return await self._pass_watch(request)
        return await self._forward(request)

    def _url(self, request: web.Request) -> URL:
        return URL(self.upstream.server + request.raw_path, encoded=True)

    def _headers(self, request: web.Request) -> dict[str, str]:
        """The caller's, or our own account when it shows none."""
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        return {**self.upstream.headers, **headers}

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the proxy is not started")
        return self._session

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        async with self.session.request(
            request.method,
            self._url(request),
            data=await request.read(),
            headers=self._headers(request),
            ssl=self.upstream.tls,
        ) as reply:
            kept = {name: reply.headers[name] for name in ("Retry-After",) if name in reply.headers}
            body = await reply.read()
            return web.Response(
                body=body, status=reply.status, headers={**kept, "Content-Type": reply.headers["Content-Type"]}
            )

    async def _pass_watch(self, request: web.Request) -> web.StreamResponse:
        async with self.session.get(self._url(request), headers=self._headers(request), ssl=self.upstream.tls) as reply:
            response = web.StreamResponse(status=reply.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            while event := await reply.content.readline():
                if self._dice.random() < self.watch_expiry_rate:
                    self.injected["410"] += 1
                    await response.write(line("ERROR", Refusal(410, "Expired", "too old resource version").body))
                    break
                await response.write(event)
        return response

    async def _open_and_drop(self, request: web.Request) -> None:
        """The server has begun the command when its answer gets lost."""
        with contextlib.suppress(aiohttp.WSServerHandshakeError):
            async with self._connect(request):
                await asyncio.sleep(0.2)

    def _connect(self, request: web.Request) -> Any:
        return self.session.ws_connect(
            self._url(request),
            protocols=[name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")],
            headers=self._headers(request),
            ssl=self.upstream.tls,
            autoping=False,
            max_msg_size=0,
        )

    async def _pass_socket(self, request: web.Request) -> web.StreamResponse:
        try:
            theirs = await self._connect(request)
        except aiohttp.WSServerHandshakeError as error:
            return answer(Refusal(error.status, "Upstream", error.message))
        ours = web.WebSocketResponse(protocols=[theirs.protocol or ""], autoping=False, max_msg_size=0, compress=False)
        await ours.prepare(request)
        tasks = {asyncio.create_task(pump(ours, theirs)), asyncio.create_task(pump(theirs, ours))}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await theirs.close()
            await ours.close()
        return ours


type Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def pump(source: Socket, target: Socket) -> None:
    """Until the source ends."""
    while True:
        message = await source.receive()
        if message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type is WSMsgType.PING:
            await target.ping(message.data)
        elif message.type is WSMsgType.PONG:
            await target.pong(message.data)
        else:
            return


def break_off(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
