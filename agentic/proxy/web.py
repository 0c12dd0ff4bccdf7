"""The two HTTP planes: agents ask for turns on one, the control side opens and seals sessions on the other.

The agent plane takes `/s/<session>/v1/...`, and `/v1/...` where the key alone says which session; either way the key
has to be that session's (invariant 9). Nothing on it opens, seals, lists or rewards. The control plane has a key of
its own. Every error is an OpenAI-style JSON body. A client that hangs up cancels its handler, which is how the
gateway learns it.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import BaseModel, ValidationError

from .conversation import message_deltas
from .dialects import make_dialects
from .dialects.base import DeltaChunk, ReplyHead
from .errors import InvalidRequest, JournalError, RequestRefused, SessionConflict, Unauthorized, WorkerUnavailable
from .gateway import Gateway
from .keys import SessionKeys
from .models import SessionHandle, SessionSpec
from .renderers.base import Renderer
from .session import Arrival

logger = logging.getLogger(__name__)


class AgentPlane:
    """What an agent may ask for."""

    def __init__(self, gateway: Gateway, keys: SessionKeys, renderer: Renderer) -> None:
        self._gateway = gateway
        self._keys = keys
        self._renderer = renderer
        self._chat = make_dialects()[0]

    def app(self, max_body_bytes: int, before: Sequence[Middleware] = ()) -> web.Application:
        """The aiohttp application; `before` comes before its handlers."""
        app = web.Application(client_max_size=max_body_bytes, middlewares=[answer_errors, *before])
        app.router.add_get("/health", health)
        for prefix in ("", "/s/{session}"):
            app.router.add_post(f"{prefix}/v1/chat/completions", self.chat)
            app.router.add_get(f"{prefix}/v1/models", self.models)
        return app

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """One assistant turn; the reply counts as received once it is written whole."""
        session_id = self._session(http)
        body = await http.read()
        request = self._chat.parse(body)
        call = self._chat.to_call(request)
        async with self._gateway.call(session_id, arrival(http, body), call) as reply:
            if request.stream:
                response = web.StreamResponse(
                    headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
                )
                await response.prepare(http)
                head = ReplyHead(reply.reply_id, reply.created, reply.model, reply.prompt_ids)
                writer = self._chat.writer(request, head, self._renderer.token_text)
                chunk = DeltaChunk(
                    tuple(message_deltas(reply.message)), tuple(reply.completion_ids), tuple(reply.logprobs)
                )
                for event in (*writer.begin(), *writer.delta(chunk), *writer.end(reply)):
                    await response.write(event.encode())
                await response.write_eof()
                return response
            plain = web.json_response(self._chat.reply_body(request, reply, self._renderer.token_text))
            await plain.prepare(http)
            await plain.write_eof()
            return plain

    async def models(self, http: web.Request) -> web.StreamResponse:
        """The one model of the session."""
        name = self._gateway.model(self._session(http))
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "proxy"}]})

    def _session(self, http: web.Request) -> str:
        owner = self._keys.owner(bearer(http))
        named = http.match_info.get("session", owner)
        if owner is None or named != owner:
            raise Unauthorized("this key does not open this session: send the session's own key as a bearer token")
        return owner


class ControlPlane:
    """What the control side may ask for."""

    def __init__(self, gateway: Gateway, key: str, handle: Callable[[str], SessionHandle]) -> None:
        self._gateway = gateway
        self._key = key
        self._handle = handle

    def app(self, max_body_bytes: int, before: Sequence[Middleware] = ()) -> web.Application:
        """The aiohttp application; `before` comes after the check of the key, before the handlers."""
        app = web.Application(client_max_size=max_body_bytes, middlewares=[answer_errors, self._check_key, *before])
        app.router.add_get("/health", health)
        app.router.add_post("/sessions", self.open)
        app.router.add_get("/sessions/{session}", self.fetch)
        app.router.add_post("/sessions/{session}/seal", self.seal)
        app.router.add_delete("/sessions/{session}", self.drop)
        return app

    async def open(self, http: web.Request) -> web.StreamResponse:
        """Open a session, or give the handle of the same one again."""
        spec = parse(SessionSpec, await http.read())
        await self._gateway.open(spec)
        return model_response(self._handle(spec.session_id))

    async def fetch(self, http: web.Request) -> web.StreamResponse:
        """The sealed session, or null while it is open."""
        sealed = self._gateway.sealed(http.match_info["session"])
        return web.json_response(None) if sealed is None else model_response(sealed)

    async def seal(self, http: web.Request) -> web.StreamResponse:
        """Seal a session; the same result when repeated."""
        return model_response(await self._gateway.seal(http.match_info["session"]))

    async def drop(self, http: web.Request) -> web.StreamResponse:
        """Forget a session."""
        await self._gateway.drop(http.match_info["session"])
        return web.json_response({"dropped": http.match_info["session"]})

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = bearer(request).encode("utf-8", "replace")
        if request.path != "/health" and not hmac.compare_digest(given, self._key.encode()):
            raise Unauthorized("this is not the control key")
        return await handler(request)


async def health(_http: web.Request) -> web.StreamResponse:
    """That the process answers."""
    return web.json_response({"status": "ok"})


def bearer(http: web.Request) -> str:
    """The key that a request carries, empty if none."""
    scheme, _, key = http.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else http.headers.get("x-api-key", "")


def arrival(http: web.Request, body: bytes) -> Arrival:
    """What says whether the request is a retry."""
    count = http.headers.get("x-stainless-retry-count", "")
    return Arrival(
        body_digest=hashlib.sha256(body).hexdigest(),
        idempotency_key=http.headers.get("Idempotency-Key") or None,
        retry_count=int(count) if count.isascii() and count.isdigit() else 0,
    )


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


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever escapes into an error body; the one place where that happens."""
    try:
        return await handler(request)
    except RequestRefused as error:
        response = error_response(error.status, error.code, error.kind, str(error), error.param)
        if isinstance(error, WorkerUnavailable):
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        return response
    except SessionConflict as error:
        return error_response(409, "session_conflict", "invalid_request_error", str(error))
    except JournalError as error:
        return error_response(500, "journal_error", "server_error", str(error))
    except web.HTTPException as error:
        return error_response(
            error.status, error.reason.lower().replace(" ", "_"), "invalid_request_error", error.reason
        )
    except ConnectionError:
        raise  # nobody is left to answer
    except Exception:
        logger.exception("%s %s broke", request.method, request.path)
        return error_response(500, "internal_error", "server_error", "internal error of the proxy: see its log")


def error_response(status: int, code: str, kind: str, message: str, param: str | None = None) -> web.Response:
    """An OpenAI-style error."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return web.json_response({"error": error}, status=status)
