"""The server's HTTP side: routes, keys, statuses. What they do lies in `service.py`.

Every answer that is no success is a `Refusal` in JSON. Orders that do not fit now are answered with 429, and with 503
while the server stops, both with `Retry-After`. Events are lines of JSON that come as they happen.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentic.rollout.errors import TaskFolderError
from agentic.rollout.server.keys import Keys
from agentic.rollout.server.service import RefusedError, TrialService, refuse
from agentic.rollout.server.tasks import pack_folder
from agentic.rollout.server.wire import (
    DIGEST_PATTERN,
    Capacity,
    Health,
    Refusal,
    TaskReceipt,
    TrialEvent,
    TrialOrder,
    TrialStatus,
)

STATUSES = {
    "busy": HTTPStatus.TOO_MANY_REQUESTS,
    "draining": HTTPStatus.SERVICE_UNAVAILABLE,
    "taken": HTTPStatus.CONFLICT,
    "unknown_task": HTTPStatus.FAILED_DEPENDENCY,
    "unknown_trial": HTTPStatus.NOT_FOUND,
    "no_folder": HTTPStatus.NOT_FOUND,
    "bad_task": HTTPStatus.UNPROCESSABLE_ENTITY,
    "not_allowed": HTTPStatus.FORBIDDEN,
}
"""How each refusal is answered."""

JSON_LINES = "application/x-ndjson"
_SPOOL_BYTES = 4 << 20
"""Uploads beyond this wait on the disk and not in memory."""

TrialId = Annotated[str, InPath(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)]
TaskId = Annotated[str, InPath(pattern=DIGEST_PATTERN)]


_OWNER = "agentic.owner"
"""Where `KeyGuard` leaves word of whose request it is."""


def _owner(request: Request) -> str:
    owner: str = request.scope[_OWNER]
    return owner


Owner = Annotated[str, Depends(_owner)]


class Routes:
    """The handlers, over one service."""

    def __init__(self, service: TrialService, upload_limit_bytes: int) -> None:
        self._service = service
        self._upload_limit_bytes = upload_limit_bytes

    def router(self) -> APIRouter:
        """All of them under their paths."""
        router = APIRouter(responses={code: {"model": Refusal} for code in (401, 403, 404, 409, 422, 424, 429, 503)})
        add = router.add_api_route
        add("/v1/trials/{trial_id}", self.submit, methods=["PUT"], status_code=201)
        add("/v1/trials/{trial_id}", self.status, methods=["GET"])
        add("/v1/trials/{trial_id}", self.cancel, methods=["DELETE"])
        add("/v1/trials/{trial_id}/events", self.events, methods=["GET"], response_class=StreamingResponse)
        add("/v1/trials/{trial_id}/folder", self.folder, methods=["GET"], response_class=StreamingResponse)
        add("/v1/tasks/{task}", self.upload, methods=["PUT"], status_code=201)
        add("/v1/tasks/{task}", self.has_task, methods=["GET"])
        add("/v1/capacity", self.capacity, methods=["GET"])
        return router

    async def submit(self, trial_id: TrialId, order: TrialOrder, owner: Owner, response: Response) -> TrialStatus:
        """Order a trial. Repeating the request is safe: 201 the first time, 200 afterwards."""
        if order.trial_id != trial_id:
            raise refuse("not_allowed", f"the order is for {order.trial_id!r}, not for {trial_id!r}")
        entry, is_new = await self._service.submit(order, owner)
        response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
        return entry.status()

    async def status(self, trial_id: TrialId, owner: Owner) -> TrialStatus:
        """Where a trial stands, and its result once it has ended."""
        return self._service.find(trial_id, owner).status()

    async def cancel(self, trial_id: TrialId, owner: Owner) -> TrialStatus:
        """End a trial and its sandbox; answers when both have ended."""
        entry = self._service.find(trial_id, owner)
        await self._service.cancel(entry)
        return entry.status()

    async def events(
        self, trial_id: TrialId, owner: Owner, after: Annotated[int, Query(ge=0)] = 0
    ) -> StreamingResponse:
        """Events with numbers above `after`, one JSON object a line, until the trial has ended; number 0 is a sign of
        life. The connection may end before: ask again with the last number."""
        entry = self._service.find(trial_id, owner)
        return StreamingResponse(_lines(self._service.events(entry, after)), media_type=JSON_LINES)

    async def folder(self, trial_id: TrialId, owner: Owner) -> StreamingResponse:
        """What a trial left, as a compressed tar archive."""
        folder = self._service.folder_of(self._service.find(trial_id, owner))
        archive = await asyncio.to_thread(_archive_of, folder)
        return StreamingResponse(_blocks(archive), media_type="application/gzip")

    async def upload(self, task: TaskId, request: Request) -> TaskReceipt:
        """Send a task's folder as a compressed tar archive; its content must have this digest."""
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as archive:
            taken = 0
            async for chunk in request.stream():
                taken += len(chunk)
                if taken > self._upload_limit_bytes:
                    raise refuse("bad_task", f"the archive has more than {self._upload_limit_bytes} bytes")
                archive.write(chunk)
            archive.seek(0)
            await self._keep(task, archive)
        return TaskReceipt(task=task)

    async def _keep(self, task: str, archive: Any) -> None:
        stream: IO[bytes] = archive
        try:
            await asyncio.to_thread(self._service.tasks.add, task, stream)
        except TaskFolderError as error:
            raise refuse("bad_task", str(error)) from error
        except OSError as error:
            raise refuse("busy", f"task {task[:12]} cannot be kept here ({error.strerror}): free disk space") from error

    async def has_task(self, task: TaskId) -> TaskReceipt:
        """Whether the server has a task's folder."""
        if self._service.tasks.find(task) is None:
            raise refuse("unknown_task", f"task {task[:12]} is not here: send its folder")
        return TaskReceipt(task=task)

    async def capacity(self) -> Capacity:
        """What runs and waits, and how much fits."""
        return self._service.capacity()

    async def health(self) -> Health:
        """Whether the server takes orders; needs no key."""
        state = self._service.capacity().state
        if state != "serving":
            raise refuse("draining", "the trial server is stopping")
        return Health(state=state)


def make_app(service: TrialService, keys: Keys, *, upload_limit_bytes: int, retry_after_seconds: int) -> FastAPI:
    """The application; it starts the service, and whoever runs it drains and closes it."""

    @asynccontextmanager
    async def started(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield

    app = FastAPI(title="Trial server", version="1", lifespan=started, docs_url=None, redoc_url=None)
    routes = Routes(service, upload_limit_bytes)
    app.include_router(routes.router())
    app.add_api_route("/health", routes.health, methods=["GET"])

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        status = STATUSES[error.refusal.code]
        later = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        headers = {"Retry-After": str(retry_after_seconds)} if later else {}
        return JSONResponse(error.refusal.model_dump(), status_code=status, headers=headers)

    app.add_middleware(KeyGuard, keys=keys)
    return app


class KeyGuard:
    """Lets only requests with a key through, before anything of them is read; `/health` needs none."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's call."""
        if scope["type"] != "http" or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        owner = self._keys.owner_of(Headers(scope=scope).get("authorization"))
        if owner is not None:
            await self._app({**scope, _OWNER: owner}, receive, send)
            return
        refusal = Refusal(code="not_allowed", message="no key of this server: send `Authorization: Bearer KEY`")
        headers = {"WWW-Authenticate": "Bearer"}
        await JSONResponse(refusal.model_dump(), HTTPStatus.UNAUTHORIZED, headers)(scope, receive, send)


async def _lines(events: AsyncIterator[TrialEvent]) -> AsyncIterator[bytes]:
    async for event in events:
        yield event.model_dump_json().encode() + b"\n"


def _archive_of(folder: Path) -> IO[bytes]:
    archive = tempfile.TemporaryFile()  # noqa: SIM115 - closed, and so removed, by who sends it
    pack_folder(folder, archive)
    archive.seek(0)
    return archive


def _blocks(archive: IO[bytes]) -> Iterator[bytes]:
    with archive:
        while block := archive.read(1 << 20):
            yield block
