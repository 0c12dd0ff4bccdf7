"""Ray's job API on a real socket, with the answers that Ray 2.60 gives, for tests of what speaks it.

    async with FakeRayHead(token="t") as head:
        client = RayJobClient(head.address, "t")

What it fakes: nothing runs. Jobs are RUNNING once submitted; a test prints to them, ends them, or plays what their
program would do by `on_submit`. `forget` is a head that was started anew, `is_down` one that answers 503,
`lost_answers` calls that are carried out and whose answer never comes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

OVER = ("STOPPED", "SUCCEEDED", "FAILED")
CLOSED = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED)


@dataclass
class FakeJob:
    """What the head remembers of a submission."""

    submission_id: str
    entrypoint: str
    metadata: dict[str, str]
    status: str = "RUNNING"
    message: str = "Job is currently running."
    driver_exit_code: int | None = None
    log: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> dict[str, Any]:
        return {
            "type": "SUBMISSION",
            "job_id": None,
            "submission_id": self.submission_id,
            "driver_info": None,
            "status": self.status,
            "entrypoint": self.entrypoint,
            "message": self.message,
            "error_type": None,
            "start_time": 1,
            "end_time": None,
            "metadata": self.metadata,
            "runtime_env": {},
            "driver_agent_http_address": "http://127.0.0.1:52365",
            "driver_node_id": "n",
            "driver_exit_code": self.driver_exit_code,
        }


@dataclass
class FakeRayHead:
    """One head; an async context."""

    token: str | None = None
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    is_down: bool = False
    lost_answers: int = 0
    breaks_logs: bool = False
    """Each log connection ends after its first message."""
    ends_on_stop: bool = True
    on_submit: Callable[[FakeJob], None] | None = None
    submitted: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    address: str = ""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeRayHead":
        app = web.Application(middlewares=[self._admit])
        app.add_routes(
            [
                web.get("/api/version", self._version),
                web.get("/api/jobs/", self._list),
                web.post("/api/jobs/", self._submit),
                web.get("/api/jobs/{id}", self._find),
                web.post("/api/jobs/{id}/stop", self._stop),
                web.get("/api/jobs/{id}/logs/tail", self._tail),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.address = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def print(self, submission_id: str, text: str) -> None:
        job = self.jobs[submission_id]
        job.log += text
        job.changed.set()

    def end(self, submission_id: str, status: str, exit_code: int | None = None, message: str = "") -> None:
        job = self.jobs[submission_id]
        job.status, job.driver_exit_code, job.message = status, exit_code, message
        job.changed.set()

    def forget(self) -> None:
        """What a head that was started anew knows of before."""
        for job in self.jobs.values():
            job.status = "FAILED"
            job.changed.set()
        self.jobs = {}

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.is_down:
            return web.Response(status=503, text="the dashboard's module is not there")
        if self.token is not None:
            given = request.headers.get("Authorization")
            if given is None:
                return web.Response(status=401, text="Unauthorized: Missing authentication token")
            if given != f"Bearer {self.token}":
                return web.Response(status=403, text="Forbidden: Invalid authentication token")
        answer: web.StreamResponse = await handler(request)
        if request.method == "POST" and self.lost_answers:
            self.lost_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": "c", "session_name": "s"})

    async def _list(self, _: web.Request) -> web.Response:
        driver = {"type": "DRIVER", "job_id": "01000000", "submission_id": None, "status": "RUNNING", "entrypoint": "x"}
        return web.json_response([*(job.body for job in self.jobs.values()), driver])

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not isinstance(body.get("entrypoint"), str):
            return web.Response(status=400, text="TypeError: entrypoint must be a string")
        name = body["submission_id"]
        if name in self.jobs:
            text = f"Traceback...\nValueError: Job with submission_id {name} already exists. Please use another."
            return web.Response(status=500, text=text)
        job = self.jobs[name] = FakeJob(name, body["entrypoint"], body.get("metadata") or {})
        self.submitted.append(name)
        if self.on_submit is not None:
            self.on_submit(job)
        return web.json_response({"job_id": name, "submission_id": name})

    async def _find(self, request: web.Request) -> web.Response:
        job = self._job(request)
        return self._unknown(request) if job is None else web.json_response(job.body)

    async def _stop(self, request: web.Request) -> web.Response:
        job = self._job(request)
        if job is None:
            return self._unknown(request)
        is_living = job.status not in OVER
        self.stopped.append(job.submission_id)
        if is_living and self.ends_on_stop:
            self.end(job.submission_id, "STOPPED")
        return web.json_response({"stopped": is_living})

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        job = self._job(request)
        if job is None:
            return self._unknown(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        sent = 0
        while not socket.closed:
            job.changed.clear()
            if len(job.log) > sent:
                await socket.send_str(job.log[sent:])
                sent = len(job.log)
                if self.breaks_logs:
                    break
            if job.status in OVER:
                break
            waiting = [asyncio.ensure_future(job.changed.wait()), asyncio.ensure_future(socket.receive())]
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            if waiting[1] in done and waiting[1].result().type in (
                WSMsgType.CLOSE,
                WSMsgType.CLOSING,
                WSMsgType.CLOSED,
            ):
                break
        await socket.close()
        return socket

    def _job(self, request: web.Request) -> FakeJob | None:
        return self.jobs.get(request.match_info["id"])

    def _unknown(self, request: web.Request) -> web.Response:
        return web.Response(status=404, text=f"Job {request.match_info['id']} does not exist")
