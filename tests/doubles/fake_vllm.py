"""vLLM's `/v1/completions` as a double: the wire form of vLLM 0.24's stream, with scripted tokens instead of a model.

It answers what it was asked for (ids, logprobs) in the fields that vllm's CompletionStreamResponse has, one token an
event.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware


class FakeVllm:
    """One scripted answer for every request; attributes say what to get wrong."""

    def __init__(self, ids: list[int], finish: str = "stop") -> None:
        self.ids = ids
        self.finish = finish
        self.stop_reason: int | None = None
        self.logprobs: list[float | None] = [-0.25 * (n + 1) for n in range(len(ids))]
        self.prompt_ids_shown: list[int] | None = None
        self.status = 200
        self.message = "no such model"
        self.error_in_stream: str | None = None
        self.delay_seconds = 0.0
        self.cut_after: int | None = None
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.is_compact = True
        self.hang_ups = 0
        self.open = self.most_open = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self, port: int = 0, before: Sequence[Middleware] = ()) -> AsyncIterator["FakeVllm"]:
        """Listen on loopback; `before` comes before the answers."""
        app = web.Application(client_max_size=2**26, middlewares=before)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/version", self._version)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.24.0"})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            error = {"message": self.message, "type": "NotFoundError", "param": None, "code": self.status}
            return web.json_response({"error": error}, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            for number in range(len(self.ids)):
                await asyncio.sleep(self.delay_seconds)
                if number == self.cut_after:
                    return response
                await response.write(self._event(number, body))
        except asyncio.CancelledError:
            self.hang_ups += 1
            raise
        finally:
            self.open -= 1
        await response.write(b"data: [DONE]\n\n")
        return response

    def _event(self, number: int, body: dict[str, Any]) -> bytes:
        if self.error_in_stream:
            return b"data: " + json.dumps({"error": {"message": self.error_in_stream}}).encode() + b"\n\n"
        last = number == len(self.ids) - 1
        choice: dict[str, Any] = {
            "index": 0,
            "text": f"t{self.ids[number]}",
            "logprobs": None,
            "finish_reason": self.finish if last else None,
            "stop_reason": self.stop_reason if last else None,
            "prompt_token_ids": (self.prompt_ids_shown or body["prompt"]) if number == 0 else None,
            "token_ids": [self.ids[number]] if body.get("return_token_ids") else None,
        }
        if body.get("logprobs") is not None:
            token = f"token_id:{self.ids[number]}"
            choice["logprobs"] = {
                "text_offset": [0],
                "token_logprobs": [self.logprobs[number]],
                "tokens": [token],
                "top_logprobs": [{token: self.logprobs[number]}],
            }
        payload = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        separators = (",", ":") if self.is_compact else None
        return b"data: " + json.dumps(payload, separators=separators).encode() + b"\n\n"
