"""What the HTTP engines share: one client without limits, JSON out, server-sent events in, and failures told apart.

Sessions, not connections, are what is limited, and the proxy's own timeout ends a generation; so the client has neither
a limit of connections nor of time, and a request costs the same however many are open. Payloads are written by orjson:
64k token ids take about a millisecond. A status of 400 or 422 is a refusal that repeats itself (EngineRefused); any
other trouble may pass (EngineError).
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import aiohttp
import numpy
import orjson

from ..errors import EngineError
from ..tracing import trace_headers
from .refusals import is_overflow, refusal_or_error

CONNECT_SECONDS = 10.0
MESSAGE_SECONDS = 2.0
REFUSALS = (400, 422)


class EngineHttp:
    """A connection pool to one server."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def events(self, path: str, body: Mapping[str, Any], echo: bytes = b"") -> AsyncGenerator[dict[str, Any]]:
        """Post, and give the JSON objects of the server's events; an event that says `error` raises.

        `echo` is a field, name and value, that the first event is expected to repeat; where it does, its value is given
        as `true`. It is found by its bytes: reading 64k ids only to compare them takes as long as the rest of a call.
        """
        url, data = self.base_url + path, dumps(body)
        try:
            async with await self._post(url, data) as response:
                if response.status != 200:
                    raise _failure(url, response.status, await response.read())
                async for payload in _payloads(response.content, echo):
                    yield payload
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise EngineError(f"no answer from {url}: {reason}: is the server up?") from error

    async def send(self, path: str, body: Mapping[str, Any]) -> None:
        """Post where no answer is awaited but its arrival, and that not for long: a server that is gone, or hangs, must
        hold up neither a pause nor a seal."""
        url, data = self.base_url + path, dumps(body)
        try:
            async with (
                asyncio.timeout(MESSAGE_SECONDS),
                self._client().post(url, data=data, headers=self._sent_headers()),
            ):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError):
            return

    async def close(self) -> None:
        """Close connections; harmless when repeated."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, url: str, data: bytes) -> aiohttp.ClientResponse:
        try:
            return await self._client().post(url, data=data, headers=self._sent_headers())
        except aiohttp.ServerDisconnectedError:
            # A kept connection that a restarted server has closed; nothing came of the request, so it may be repeated.
            return await self._client().post(url, data=data, headers=self._sent_headers())

    def _sent_headers(self) -> dict[str, str]:
        return {**self._headers, **trace_headers()}

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session


def bearer_header(api_key: str | None) -> dict[str, str]:
    """What a server that wants a key is sent with each request; nothing without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def dumps(body: Mapping[str, Any]) -> bytes:
    """JSON; arrays of numpy are written as lists."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def id_json(ids: Sequence[int]) -> bytes:
    """Ids as JSON without spaces, as vLLM writes them too."""
    return orjson.dumps(id_list(ids), option=orjson.OPT_SERIALIZE_NUMPY)


def id_list(ids: Sequence[int]) -> Any:
    """Ids as something that orjson writes at once."""
    if isinstance(ids, array):
        return numpy.frombuffer(ids, dtype=ids.typecode)
    return ids if isinstance(ids, list | tuple | numpy.ndarray) else list(ids)


async def _payloads(stream: aiohttp.StreamReader, echo: bytes) -> AsyncGenerator[dict[str, Any]]:
    # Lines are joined here: the first may hold the prompt's ids and passes aiohttp's limit of a line.
    parts: list[bytes] = []
    async for data in stream.iter_any():
        first, *lines = data.split(b"\n")
        parts.append(first)
        for line in lines:
            whole, parts = b"".join(parts), [line]
            payload = _payload(whole.replace(echo, echo[: echo.index(b":") + 1] + b"true", 1) if echo else whole)
            if payload is not None:
                echo = b""
                yield payload


def _payload(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"data:"):
        return None
    text = line[5:].strip()
    if text == b"[DONE]":
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the engine sent {text[:80]!r}, which is not JSON") from error
    if not isinstance(value, dict):
        raise EngineError(f"the engine sent {text[:80]!r}, which is not an object")
    if value.get("error"):
        message, code = _error_of(value["error"])
        raise refusal_or_error(f"the engine failed: {message}", code in REFUSALS)
    return value


def _failure(url: str, status: int, text: bytes) -> EngineError:
    try:
        message, _ = _error_of(orjson.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        message = text[:200].decode("utf-8", "replace")
    return refusal_or_error(f"{url} answered {status}: {message}", status in REFUSALS)


def _error_of(error: Any) -> tuple[str, int | None]:
    if not isinstance(error, dict):
        return str(error), None
    message, code = str(error.get("message", error)), error.get("code")
    # SGLang says no code for a prompt that is too long.
    if code is None and is_overflow(message):
        return message, REFUSALS[0]
    return message, code if isinstance(code, int) else None
