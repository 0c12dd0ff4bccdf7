"""The engine of all targets: vLLM's wire form without a model, in a process of its own.

`/v1/completions` takes and echoes token ids, as vLLM does when it is asked to; `/v1/chat/completions` takes messages
and gives the ids that a prompt of that size would have. Both sleep, then answer with the same ids. The prompt's ids are
passed through as bytes, so that the engine costs next to nothing beside what is measured.

    python -m benchmarks.proxy.engine --sleep 2 --reply-ids 5,6,7 --characters-per-token 3.9

prints its port.
"""

import argparse
import asyncio
import sys
from itertools import pairwise

import orjson
import uvloop
from aiohttp import web

PROMPT = b'"prompt":'
LOGPROB = -0.25


class Engine:
    """Sleeps, then says the same each time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._sleep_seconds = options.sleep
        self._events = options.events
        self._characters_per_token = options.characters_per_token
        ids = [int(part) for part in options.reply_ids.split(",")]
        self._groups = [ids[start:end] for start, end in _groups(len(ids), options.events)]
        self._ids = ids
        self._prompt = ",".join(str(1000 + number % 9000) for number in range(300_000)).encode()
        self._chat_head, self._chat_tail = self._chat_parts()

    async def complete(self, http: web.Request) -> web.StreamResponse:
        """Token ids in, events of token ids out; stops when the client goes away."""
        body = await http.read()
        start = body.index(b"[", body.index(PROMPT))
        prompt = body[start : body.index(b"]", start) + 1]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        for number, group in enumerate(self._groups):
            await asyncio.sleep(self._sleep_seconds / self._events)
            last = number == self._events - 1
            await response.write(_event(group, prompt if number == 0 else b"null", last))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def chat(self, http: web.Request) -> web.Response:
        """Messages in, a whole reply out."""
        body = await http.read()
        await asyncio.sleep(self._sleep_seconds)
        ids = b"null"
        if b'"return_token_ids": true' in body or b'"return_token_ids":true' in body:
            count = int(len(body) / self._characters_per_token)
            ids = b"[" + self._prompt[: 5 * count - 1] + b"]"
        return web.Response(body=self._chat_head + ids + self._chat_tail, content_type="application/json")

    async def models(self, _http: web.Request) -> web.Response:
        """One model."""
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "vllm"}]})

    async def version(self, _http: web.Request) -> web.Response:
        """How the proxy knows which server this is."""
        return web.json_response({"version": "0.24.0"})

    async def health(self, _http: web.Request) -> web.Response:
        """Alive."""
        return web.Response()

    def _chat_parts(self) -> tuple[bytes, bytes]:
        entries = [{"token": "x", "logprob": LOGPROB, "bytes": [120], "top_logprobs": []} for _ in self._ids]
        message = {"role": "assistant", "content": "I look at the file before I change it, line by line. " * 8}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": {"content": entries},
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": self._ids,
        }
        usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": len(self._ids)}
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}
        head = orjson.dumps(whole | {"usage": usage})
        return head[:-1] + b',"prompt_token_ids":', b"}"


def _groups(count: int, events: int) -> list[tuple[int, int]]:
    edges = [round(count * number / events) for number in range(events + 1)]
    return list(pairwise(edges))


def _event(ids: list[int], prompt: bytes, last: bool) -> bytes:
    logprobs = {
        "text_offset": [0] * len(ids),
        "token_logprobs": [LOGPROB] * len(ids),
        "tokens": [f"token_id:{token}" for token in ids],
        "top_logprobs": [{f"token_id:{token}": LOGPROB} for token in ids],
    }
    choice = {"index": 0, "text": "x" * len(ids), "logprobs": logprobs, "finish_reason": "stop" if last else None}
    rest = orjson.dumps(choice | {"stop_reason": None, "token_ids": ids})
    head = b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"policy","choices":['
    return head + rest[:-1] + b',"prompt_token_ids":' + prompt + b"}]}\n\n"


async def serve(options: argparse.Namespace) -> None:
    """Until killed."""
    engine = Engine(options)
    app = web.Application(client_max_size=2**27)
    app.router.add_post("/v1/completions", engine.complete)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_get("/version", engine.version)
    app.router.add_get("/health", engine.health)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleep", type=float, default=2.0, help="seconds that a generation takes (default: 2)")
    parser.add_argument("--events", type=int, default=1, help="events that a reply comes in (default: 1)")
    parser.add_argument("--reply-ids", required=True, help="ids of every reply, with commas")
    parser.add_argument("--characters-per-token", type=float, default=4.0, help="of the messages (default: 4)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    uvloop.run(serve(parse_arguments(sys.argv[1:])))
