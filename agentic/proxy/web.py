"""The agent plane over HTTP: what an agent may ask for, in each of the APIs that it may speak.

It takes `/s/<session>/v1/...`, and `/v1/...` where the key alone says which session; either way the key has to be that
session's (invariant 9). Nothing on it opens, seals, lists or rewards. Every error is in the API's own form. A client
that hangs up cancels its handler, which is how the gateway learns it; one that takes nothing for too long is taken for
gone. No text of a conversation and no key is ever logged.
"""

import asyncio
import functools
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .dialects import Dialect, make_dialects
from .dialects.base import CallRequest
from .dialects.wire import write_json
from .errors import (
    BodyTooLarge,
    HttpRefused,
    InternalFailure,
    InvalidRequest,
    RequestRefused,
    Unauthorized,
    WorkerUnavailable,
    release_frames,
)
from .events import Opened
from .gateway import Gateway
from .keys import KeyClaims, SessionKeys
from .metrics import ProxyMetrics
from .renderers.base import Renderer
from .reply import LiveReply
from .rim import check_key, read_within, write_within
from .session import Arrival
from .settings import ProxySettings
from .tracing import Tracing

logger = logging.getLogger(__name__)

BEGUN = web.RequestKey("begun", bool)
"""Of a request: its answer has a status already, so another can no longer be given."""
LARGE_BODY_BYTES = 1 << 20
"""From here on a body is read into objects, and hashed, off the event loop."""
COUNT_DIGITS = 9
"""A count of retries with more is none."""
STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class AgentPlane:
    """What an agent may ask for."""

    def __init__(
        self,
        gateway: Gateway,
        keys: SessionKeys,
        renderer: Renderer,
        settings: ProxySettings,
        metrics: ProxyMetrics,
        tracing: Tracing,
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._renderer = renderer
        self._settings = settings
        self._metrics = metrics
        self._tracing = tracing
        self._dialects = make_dialects()

    def app(self, before: Sequence[Middleware] = ()) -> web.Application:
        """The aiohttp application; `before` comes before its handlers."""
        app = web.Application(client_max_size=self._settings.max_body_bytes, middlewares=[self._answer_errors, *before])
        app.router.add_get("/health", health)
        for prefix in ("", "/s/{session}"):
            app.router.add_get(f"{prefix}/v1/models", self.models)
            app.router.add_get(f"{prefix}/v1/models/{{model:.+}}", self.models)
            for dialect in self._dialects:
                app.router.add_post(f"{prefix}/v1{dialect.path}", functools.partial(self.turn, dialect))
                if dialect.count_path is not None:
                    app.router.add_post(f"{prefix}/v1{dialect.count_path}", functools.partial(self.count, dialect))
        return app

    async def turn(self, dialect: Dialect[Any], http: web.Request) -> web.StreamResponse:
        """One assistant turn; the reply counts as received once it is written whole."""
        claims, opened = await self._session(http)
        body = await self._body(http, opened.spec.max_body_bytes)
        request, call, arrived = await _read(dialect, http, body)
        with self._tracing.request(f"proxy {dialect.name}", claims.session_id, http.headers):
            async with self._gateway.call(claims.session_id, arrived, call) as reply:
                if dialect.is_streamed(request):
                    return await self._stream(http, dialect, request, reply)
                answer = dialect.reply_body(request, await reply.result(), self._renderer.token_text)
                plain = json_response(answer)
                await plain.prepare(http)
                await self._write(http, plain.write_eof())
                return plain

    async def count(self, dialect: Dialect[Any], http: web.Request) -> web.StreamResponse:
        """How many tokens a request's prompt would have."""
        claims, opened = await self._session(http)
        body = await self._body(http, opened.spec.max_body_bytes)
        _, call, _ = await _read(dialect, http, body)
        tokens = await self._gateway.count(claims.session_id, call)
        return json_response(dialect.count_body(tokens))

    async def models(self, http: web.Request) -> web.StreamResponse:
        """The one model of the session, in a form that holds what OpenAI's and Anthropic's clients read."""
        _, opened = await self._session(http)
        name, since = opened.spec.model, opened.at
        model = {
            "id": name,
            "object": "model",
            "created": int(since),
            "owned_by": "proxy",
            "type": "model",
            "display_name": name,
            "created_at": _iso(since),
        }
        asked = http.match_info.get("model")
        if asked is None:
            rim = {"first_id": name, "last_id": name, "has_more": False}
            return json_response({"object": "list", "data": [model]} | rim)
        if asked != name:
            raise HttpRefused(404, "model_not_found", f"there is no model {asked!r} here: this session's is {name!r}")
        return json_response(model)

    async def _stream(
        self, http: web.Request, dialect: Dialect[Any], request: Any, reply: LiveReply
    ) -> web.StreamResponse:
        await reply.begun()  # until here a failure can still have a status of its own
        response = web.StreamResponse(headers=STREAM_HEADERS)
        http[BEGUN] = True
        await response.prepare(http)
        writer = dialect.writer(request, reply.head, self._renderer.token_text)
        try:
            await self._send(http, response, writer.begin())
            async for chunk in reply.deltas():
                await self._send(http, response, writer.delta(chunk))
            await self._send(http, response, writer.end(await reply.result()))
        except RequestRefused as error:
            self._metrics.requests_refused += 1
            release_frames(error)
            await self._send(http, response, writer.fail(error))
        await self._write(http, response.write_eof())
        return response

    async def _send(self, http: web.Request, response: web.StreamResponse, events: Iterable[str]) -> None:
        data = "".join(events).encode()
        if data:
            await self._write(http, response.write(data))

    async def _write(self, http: web.Request, writing: Awaitable[None]) -> None:
        await write_within(http, writing, self._settings.write_timeout_seconds)

    async def _session(self, http: web.Request) -> tuple[KeyClaims, Opened]:
        claims = check_key(http, self._keys)
        opened = await self._gateway.opened(claims.session_id)
        if claims != claims_of(opened):
            raise Unauthorized("this key is of an earlier session of this name: send the key of this one")
        return claims, opened

    async def _body(self, http: web.Request, limit: int | None) -> bytes:
        if limit is not None and (http.content_length or 0) > limit:
            raise BodyTooLarge(f"the body has {http.content_length} bytes, this session takes {limit}: send less")
        body = await read_within(http, self._settings.read_timeout_seconds)
        if limit is not None and len(body) > limit:
            raise BodyTooLarge(f"the body has {len(body)} bytes, this session takes {limit}: send less")
        return body

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn whatever escapes into an error of the API that was spoken; the one place where that happens."""
        try:
            return await handler(request)
        except ConnectionError as error:
            logger.info("session %s: its client is gone", request.match_info.get("session", "-"))
            release_frames(error)
            return broken_off(request)
        except Exception as error:  # noqa: BLE001 - an agent gets an answer whatever broke; it is logged
            self._metrics.requests_refused += 1
            refusal = refusal_of(error, request)
            release_frames(error)
            if request.get(BEGUN):
                return broken_off(request)
            return refusal_response(refusal, self._dialect_of(request).error_body)

    def _dialect_of(self, http: web.Request) -> Dialect[Any]:
        for dialect in self._dialects:
            if http.path.endswith(tuple(f"/v1{path}" for path in (dialect.path, dialect.count_path) if path)):
                return dialect
        return self._dialects[0]


async def health(_http: web.Request) -> web.StreamResponse:
    """That the process answers."""
    return json_response({"status": "ok"})


def claims_of(opened: Opened) -> KeyClaims:
    """What the key of a session opens."""
    expires = 0 if opened.expires_at is None else math.ceil(opened.expires_at)
    return KeyClaims(opened.spec.session_id, opened.spec.model, expires)


def arrival(http: web.Request, dialect: str, body: bytes) -> Arrival:
    """What says whether the request is a retry."""
    count = http.headers.get("x-stainless-retry-count", "")
    key = http.headers.get("Idempotency-Key") or None
    if key is not None and not key.isascii():
        raise InvalidRequest("Idempotency-Key: has a byte that is not ASCII: send printable ASCII")
    digest = hashlib.sha256(dialect.encode() + b"\n")
    digest.update(body)
    return Arrival(
        body_digest=digest.hexdigest(),
        idempotency_key=key,
        retry_count=int(count) if count.isascii() and count.isdigit() and len(count) <= COUNT_DIGITS else 0,
    )


def json_response(value: Any, status: int = 200) -> web.Response:
    """A value as JSON."""
    return web.Response(body=write_json(value).encode(), status=status, content_type="application/json")


def broken_off(http: web.Request) -> web.Response:
    """Ends the connection; nobody gets the response, but raising would be logged as our failure."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response(status=499)


def refusal_of(error: Exception, http: web.Request) -> RequestRefused:
    """What a client is told of an error; what is nobody's fault but ours is logged."""
    match error:
        case RequestRefused():
            return error
        case web.HTTPRequestEntityTooLarge():
            return BodyTooLarge(f"{error.text}: send less")
        case web.HTTPException():
            return HttpRefused(error.status, error.reason.lower().replace(" ", "_"), error.reason)
    logger.error("%s %s broke", http.method, http.match_info.get("session", "-"), exc_info=error)
    return InternalFailure("internal error of the proxy: see its log")


def refusal_response(error: RequestRefused, error_body: Callable[[RequestRefused], Any]) -> web.Response:
    """An error as a response."""
    response = json_response(error_body(error), error.status)
    if isinstance(error, WorkerUnavailable):
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    return response


async def _read(dialect: Dialect[Any], http: web.Request, body: bytes) -> tuple[Any, CallRequest, Arrival]:
    """The request, what is asked for, and what says whether it is a retry."""

    def read() -> tuple[Any, CallRequest, Arrival]:
        request = dialect.parse(body)
        return request, dialect.to_call(request), arrival(http, dialect.name, body)

    return read() if len(body) < LARGE_BODY_BYTES else await asyncio.to_thread(read)


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
