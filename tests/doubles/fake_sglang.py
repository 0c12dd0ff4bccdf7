"""SGLang's server as a double, written from its documentation: `/generate` streamed, `/abort_request`, `/model_info`.

It fakes the model: the tokens are scripted. What it says about them has the documented form: events that repeat all
tokens so far (or, with `incremental`, only the new ones), `output_token_logprobs` as [logprob, id, text], and a
`finish_reason` that is an object. The ids that it continues after are those of the request, so a generation that is
asked for again with its first tokens as part of the prompt goes on where it was.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class FakeSglang:
    """One scripted continuation for every prompt; attributes say how to give it."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.incremental = False
        self.says_output_ids = True
        self.weight_version: int | str = "default"
        self.versions: dict[int, int] = {}
        self.finish: dict[str, Any] = {"type": "stop", "matched": ids[-1] if ids else None}
        self.abort_at: int | None = None
        self.wrong_logprobs = 0
        self.refusal: str | None = None
        self.delay_seconds = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.hang_ups = 0
        self.answers_aborts = True
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeSglang"]:
        """Listen on loopback."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_get("/model_info", self._info)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _info(self, _request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "is_generation": True, "weight_version": self.weight_version})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        while not self.answers_aborts:
            await asyncio.sleep(0.1)
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for event in self._events(body):
                await asyncio.sleep(self.delay_seconds)
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        except asyncio.CancelledError:
            self.hang_ups += 1
            raise
        await response.write(b"data: [DONE]\n\n")
        return response

    def _events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if self.refusal is not None:
            return [{"error": {"message": self.refusal}}]
        prompt = body["input_ids"]
        done = next((n for n in range(len(self.ids), 0, -1) if prompt[-n:] == self.ids[:n]), 0)
        left = self.ids[done : done + body["sampling_params"]["max_new_tokens"]]
        last = self.finish if done + len(left) == len(self.ids) else {"type": "length", "length": len(left)}
        events = []
        for count in range(1, len(left) + 1):
            if done + count - 1 == self.abort_at:
                self.abort_at = None
                return [*events, self._event(body, left, count - 1, count - 1, {"type": "abort", "message": "paused"})]
            events.append(self._event(body, left, count - 1, count, last if count == len(left) else None))
        return events

    def _event(
        self, body: dict[str, Any], left: list[int], start: int, end: int, finish: dict[str, Any] | None
    ) -> dict[str, Any]:
        shown = left[start:end] if self.incremental else left[:end]
        version = max((v for place, v in self.versions.items() if place < end), default=self.weight_version)
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": end,
            "weight_version": version,
        }
        if body.get("return_logprob"):
            pairs = [[-0.25 * token, token, None] for token in shown]
            meta["output_token_logprobs"] = pairs + [[-1.0, 0, None]] * self.wrong_logprobs
        event = {"text": "".join(f"t{token}" for token in shown), "meta_info": meta}
        return event | ({"output_ids": shown} if self.says_output_ids else {})
