"""The control plane over HTTP: open, seal, fetch, drop, heartbeat, list, pause, resume, metrics.

Another port than the agents' and a key of its own, checked before anything else but the health check and the OpenAPI
document, which hold nothing of a session. The operations are a table, from which both the routes and the document are
made, so neither can lack what the other has.
"""

import hmac
from collections.abc import Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import BaseModel, ValidationError

from .errors import (
    HttpRefused,
    InvalidRequest,
    JournalError,
    RequestRefused,
    SessionConflict,
    Unauthorized,
    release_frames,
)
from .models import Dropped, Paused, Resume, SealedSession, SessionHandle, SessionInfo, SessionSpec
from .openapi import Operation, make_document
from .rim import bearer
from .server_calls import ServerCalls
from .web import health, json_response, refusal_of, refusal_response

OPEN_PATHS = frozenset(["/health", "/openapi.json"])


class ControlPlane:
    """What the control side may ask for."""

    def __init__(self, server: ServerCalls, key: str) -> None:
        self._server = server
        self._key = key

    def operations(self) -> list[Operation]:
        """All of them."""
        one = "/sessions/{session}"
        return [
            Operation("POST", "/sessions", "openSession", self.open, SessionHandle, SessionSpec),
            Operation("GET", "/sessions", "listSessions", self.list, list[SessionInfo]),
            Operation("GET", one, "fetchSession", self.fetch, SealedSession | None),
            Operation("DELETE", one, "dropSession", self.drop, Dropped),
            Operation("POST", f"{one}/seal", "sealSession", self.seal, SealedSession),
            Operation("POST", f"{one}/heartbeat", "keepSession", self.heartbeat, SessionInfo),
            Operation("GET", f"{one}/graph", "describeSession", self.graph, None),
            Operation("POST", "/pause", "pauseSampling", self.pause, Paused),
            Operation("POST", "/resume", "resumeSampling", self.resume, Paused, Resume, is_body_required=False),
            Operation("GET", "/metrics", "readMetrics", self.metrics, None),
        ]

    def app(self, max_body_bytes: int, before: Sequence[Middleware] = ()) -> web.Application:
        """The aiohttp application; `before` comes after the check of the key, before the handlers."""
        app = web.Application(client_max_size=max_body_bytes, middlewares=[answer_errors, self._check_key, *before])
        app.router.add_get("/health", health)
        app.router.add_get("/openapi.json", self.document)
        for operation in self.operations():
            app.router.add_route(operation.method, operation.path, operation.handler)
        return app

    async def document(self, _http: web.Request) -> web.StreamResponse:
        """The OpenAPI document of this plane."""
        return json_response(make_document(self.operations()))

    async def open(self, http: web.Request) -> web.StreamResponse:
        """Open a session, or give the handle of the same one again; 409 if it is open with another specification."""
        return model_response(await self._server.open(parse(SessionSpec, await http.read())))

    async def list(self, _http: web.Request) -> web.StreamResponse:
        """The sessions that are held, and those that expired."""
        return json_response([info.model_dump() for info in await self._server.list()])

    async def fetch(self, http: web.Request) -> web.StreamResponse:
        """The sealed session, or null while it is open."""
        sealed = await self._server.fetch(http.match_info["session"])
        return json_response(None) if sealed is None else model_response(sealed)

    async def seal(self, http: web.Request) -> web.StreamResponse:
        """Seal a session and give what it captured; the same result when repeated."""
        return model_response(await self._server.seal(http.match_info["session"]))

    async def drop(self, http: web.Request) -> web.StreamResponse:
        """Forget a session and its journal; harmless if there is none."""
        await self._server.drop(http.match_info["session"])
        return model_response(Dropped(dropped=http.match_info["session"]))

    async def heartbeat(self, http: web.Request) -> web.StreamResponse:
        """Say that a session is still wanted, where idle sessions expire."""
        return model_response(await self._server.heartbeat(http.match_info["session"]))

    async def graph(self, http: web.Request) -> web.StreamResponse:
        """The session's token graph as text, one node a line."""
        return web.Response(text=await self._server.describe(http.match_info["session"]))

    async def pause(self, _http: web.Request) -> web.StreamResponse:
        """Stop sampling for new weights: running generations go on later with the tokens so far; calls wait."""
        return model_response(await self._server.pause())

    async def resume(self, http: web.Request) -> web.StreamResponse:
        """Let sampling go on, with the version of the weights that the engine holds now."""
        body = await http.read()
        resume = parse(Resume, body) if body else Resume(version=None)
        return model_response(await self._server.resume(resume.version))

    async def metrics(self, _http: web.Request) -> web.StreamResponse:
        """Counters in Prometheus' text format."""
        from .metrics import to_text

        return web.Response(text=to_text(await self._server.metrics()))

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = bearer(request).encode("utf-8", "replace")
        if request.path not in OPEN_PATHS and not hmac.compare_digest(given, self._key.encode()):
            raise Unauthorized("this is not the control key")
        return await handler(request)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever escapes into an error body; the one place of this plane where that happens."""
    try:
        return await handler(request)
    except SessionConflict as error:
        return refusal_response(HttpRefused(409, "session_conflict", str(error)), error_body)
    except JournalError as error:
        return refusal_response(HttpRefused(500, "journal_error", str(error)), error_body)
    except ConnectionError:
        raise  # nobody is left to answer
    except Exception as error:  # noqa: BLE001 - the control side gets an answer whatever broke; it is logged
        refusal = refusal_of(error, request)
        release_frames(error)
        return refusal_response(refusal, error_body)


def error_body(error: RequestRefused) -> dict[str, Any]:
    """Errors of this plane look like OpenAI's."""
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}}


def parse[Model: BaseModel](model: type[Model], body: bytes) -> Model:
    """A model from a body, or InvalidRequest that names the first field at fault."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{place or 'body'}: {first['msg']}", place or None) from error


def model_response(model: BaseModel) -> web.Response:
    """A model as JSON."""
    return web.Response(text=model.model_dump_json(), content_type="application/json")
