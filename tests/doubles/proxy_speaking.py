"""An agent's side of each API in its plainest form: a conversation as a body, a reply, whole or streamed, as text.

Independent of the proxy's dialects; it knows only what each API's document says.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

type Body = dict[str, Any]

PATHS = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
    "completions": "/completions",
}


def conversation_body(api: str, turns: Sequence[tuple[str, str]], cap: int | None, streamed: bool) -> Body:
    """A request for the next turn of a conversation."""
    system = turns[0][1] if turns and turns[0][0] == "system" else None
    said = [{"role": role, "content": text} for role, text in turns if role != "system"]
    match api:
        case "responses":
            body: Body = {"input": said, **({"instructions": system} if system else {})}
            limit = "max_output_tokens"
        case "messages":
            body = {"messages": said, "max_tokens": 400, **({"system": system} if system else {})}
            limit = "max_tokens"
        case _:
            body = {"messages": [*([{"role": "system", "content": system}] if system else []), *said]}
            limit = "max_tokens"
    return body | ({limit: cap} if cap else {}) | ({"stream": True} if streamed else {})


def text_body(prompt: str, cap: int | None, streamed: bool) -> Body:
    """A request for a text completion."""
    return {"prompt": prompt, "max_tokens": cap or 400} | ({"stream": True} if streamed else {})


@dataclass
class Heard:
    """What a client has of one reply so far."""

    status: int = 0
    text: str = ""
    is_whole: bool = False
    reply_id: str = ""
    body: Any = None
    """Of a reply that was not streamed."""


@dataclass
class Client:
    """One request on a connection of its own."""

    api: str
    body: Body
    headers: dict[str, str]
    heard: Heard = field(default_factory=Heard)
    task: "asyncio.Task[Heard] | None" = None

    def start(self, http: aiohttp.ClientSession, base_url: str) -> None:
        """Send it, and read on by oneself."""
        self.task = asyncio.create_task(self._talk(http, base_url + PATHS[self.api]))

    async def result(self) -> Heard:
        """All that came; what a lost connection left where it was lost."""
        assert self.task is not None
        try:
            return await self.task
        except (aiohttp.ClientError, ConnectionError):
            return self.heard

    async def hang_up(self) -> None:
        """Close the connection."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _talk(self, http: aiohttp.ClientSession, url: str) -> Heard:
        heard = self.heard
        async with http.post(url, data=json.dumps(self.body), headers=self.headers) as response:
            heard.status = response.status
            if "json" in response.content_type:
                heard.body = await response.json()
                if response.status == 200:
                    heard.text, heard.reply_id = whole_text(self.api, heard.body), heard.body["id"]
                    heard.is_whole = True
                return heard
            async for line in response.content:
                if line.startswith(b"data: "):
                    self._hear(line[6:].strip())
        return heard

    def _hear(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        event = json.loads(data)
        self.heard.text += EVENT_TEXT[self.api](event)
        self.heard.is_whole |= ENDS[self.api](event)
        self.heard.reply_id = self.heard.reply_id or _id_of(event)


def whole_text(api: str, body: Any) -> str:
    """The text of a reply that came whole."""
    match api:
        case "chat":
            return str(body["choices"][0]["message"]["content"])
        case "completions":
            return str(body["choices"][0]["text"])
        case "messages":
            return "".join(block["text"] for block in body["content"] if block["type"] == "text")
    items = [item for item in body["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in items for part in item["content"])


def _first(event: Any) -> Any:
    return (event.get("choices") or [{}])[0]


def _id_of(event: Any) -> str:
    for holder in (event, event.get("response") or {}, event.get("message") or {}):
        if isinstance(holder, dict) and "id" in holder:
            return str(holder["id"])
    return ""


EVENT_TEXT: dict[str, Callable[[Any], str]] = {
    "chat": lambda event: str(_first(event).get("delta", {}).get("content") or ""),
    "completions": lambda event: str(_first(event).get("text") or ""),
    "responses": lambda event: str(event["delta"]) if event["type"] == "response.output_text.delta" else "",
    "messages": lambda event: str(event["delta"].get("text", "")) if event["type"] == "content_block_delta" else "",
}
ENDS: dict[str, Callable[[Any], bool]] = {
    "chat": lambda event: bool(_first(event).get("finish_reason")),
    "completions": lambda event: bool(_first(event).get("finish_reason")),
    "responses": lambda event: event["type"] in ("response.completed", "response.incomplete"),
    "messages": lambda event: event["type"] == "message_stop",
}
"""Which event says that a reply is whole."""
