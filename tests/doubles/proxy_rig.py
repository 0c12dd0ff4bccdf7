"""A real ProxyServer on loopback with a scripted engine, and a small agent that talks to it over HTTP.

Only the engine is scripted; sockets, JSON, tokenizer, template and sessions are real.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from proxy_tokens import make_tokenizer

from agentic.proxy import (
    CallSampling,
    Journal,
    ProxyServer,
    ProxySettings,
    Sampling,
    ScriptedEngine,
    ScriptedReply,
    SessionHandle,
    SessionSpec,
    make_renderer,
)

TOKENIZER = make_tokenizer()


def ids_of(text: str) -> tuple[int, ...]:
    """Ids of template text: special tokens count as such."""
    return tuple(TOKENIZER.encode(text, add_special_tokens=False).ids)


def text_of(ids: Sequence[int]) -> str:
    """Text with special tokens shown."""
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=False))


def says(text: str, **fields: Any) -> ScriptedReply:
    """A reply that ends its turn."""
    return ScriptedReply(ids_of(text + "<|im_end|>"), **fields)


def numbered(_prompt: Sequence[int], _sampling: CallSampling, request_id: str) -> ScriptedReply:
    """Each generation says which call it is, so no two have the same ids."""
    return says(f"answer {request_id}")


def a_spec(session_id: str = "rollout-1", **fields: Any) -> SessionSpec:
    """A roomy session."""
    sampling = fields.pop("sampling", Sampling(temperature=1.0, max_tokens=64))
    rooms = {"max_prompt_tokens": 2000, "max_response_tokens": 4000, "max_calls": 50} | fields
    return SessionSpec(session_id=session_id, sampling=sampling, **rooms)


@dataclass
class Answer:
    """One HTTP answer."""

    status: int
    body: Any

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message, as a client would keep it."""
        kept = ("role", "content", "tool_calls")
        message = self.body["choices"][0]["message"]
        return {name: message[name] for name in kept if name in message}

    @property
    def text(self) -> str:
        """The text of the assistant message."""
        return str(self.message["content"])


@dataclass
class Rig:
    """A running server and an agent's HTTP client."""

    server: ProxyServer
    engine: ScriptedEngine
    http: aiohttp.ClientSession
    clients: list[aiohttp.ClientSession] = field(default_factory=list)

    async def ask(
        self,
        handle: SessionHandle,
        messages: list[dict[str, Any]],
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Send one chat request and give the answer."""
        url = f"{handle.base_url}/chat/completions"
        key = {"Authorization": f"Bearer {handle.api_key}"}
        body = {"model": "policy", "messages": messages, **fields}
        async with self.http.post(url, json=body, headers=key | (headers or {})) as response:
            text = await response.text()
            return Answer(response.status, json.loads(text) if "json" in response.content_type else text)

    async def hang_up(self, handle: SessionHandle, messages: list[dict[str, Any]], **fields: Any) -> None:
        """Send a request and close the connection once the engine works on it."""
        before = len(self.engine.received)
        task = asyncio.create_task(self.ask(handle, messages, **fields))
        await until(lambda: len(self.engine.received) > before)
        task.cancel()
        await asyncio.wait([task])


async def until(happened: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while not happened():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(
    folder: Path, script: Any = numbered, journal: Journal | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """A started server, stopped at the end."""
    engine = ScriptedEngine(script)
    server = ProxyServer(ProxySettings(**settings), engine, make_renderer(folder), journal)
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Rig(server, engine, http)
    finally:
        await server.stop()


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}
