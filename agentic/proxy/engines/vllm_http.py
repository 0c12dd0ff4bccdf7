"""vLLM's own HTTP server as an engine: token ids in and out through `/v1/completions`, streamed.

The prompt goes as ids, so no template, tokenizer or special token of the server plays a part; the server echoes the
ids it used and a difference is an error. Every sampling value is sent, since the server's defaults come from the
model's generation_config. Logprobs have to be those of the distribution sampled from: start the server with
`--logprobs-mode processed_logprobs` (its default gives them before temperature, top_p and top_k).

Closing the connection is how vLLM is told to abort a request; so giving up a generation needs no call of its own.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from ..errors import EngineError
from ..models import CallSampling
from .base import Chunk, Finish

CONNECT_SECONDS = 10.0
IMPOSSIBLE_LOGPROB = -9999.0
"""What vLLM puts for minus infinity; a sampled token cannot have it, so it counts as missing."""


class VllmHttpEngine:
    """One vLLM server, or a router in front of several, at a base URL without `/v1`."""

    def __init__(self, base_url: str, model: str | None = None, version: int = 0, api_key: str | None = None) -> None:
        """`model` None means the server's only model; `version` is the policy version that the server holds."""
        self._url = base_url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._model = model
        self._version = version
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """Stream the continuation."""
        body = self._body(prompt_ids, sampling)
        checked = finished = False
        try:
            async with self._client().post(self._url, json=body, headers=self._headers) as response:
                if response.status != 200:
                    raise EngineError(f"{self._url} answered {response.status}: {_reason(await response.text())}")
                async for payload in _events(response.content):
                    choice = _choice(payload)
                    checked = checked or _check_prompt(choice, prompt_ids)
                    chunk = self._chunk(choice)
                    finished = chunk.finish is not None
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise EngineError(f"no answer from {self._url}: {reason}: is the server up?") from error
        if not finished:
            raise EngineError(f"{self._url} ended the stream of {request_id} without a finish reason")

    async def abort(self, request_id: str) -> None:
        """Nothing to do: the connection of a generation that was given up is closed."""

    def use_version(self, version: int) -> None:
        """The server holds these weights now."""
        self._version = version

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The proxy's own timeout ends a generation, and sessions, not connections, are what is limited.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    def _body(self, prompt_ids: Sequence[int], sampling: CallSampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "stream": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }
        optional = {"model": self._model, "seed": sampling.seed}
        return body | {name: value for name, value in optional.items() if value is not None}

    def _chunk(self, choice: dict[str, Any]) -> Chunk:
        ids = tuple(choice.get("token_ids") or ())
        logprobs = _logprobs(choice, len(ids))
        return Chunk(ids, logprobs, self._version, _finish(choice.get("finish_reason")), choice.get("stop_reason"))


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Payloads of server-sent events. Lines are joined here: the first holds the prompt's ids and passes aiohttp's
    limit."""
    rest = b""
    async for data in stream.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                yield _json_object(line[5:])


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise EngineError(f"the engine sent {text[:80]!r}, which is not JSON") from error
    if not isinstance(value, dict):
        raise EngineError(f"the engine sent {text[:80]!r}, which is not an object")
    return value


def _choice(payload: dict[str, Any]) -> dict[str, Any]:
    if "error" in payload:
        raise EngineError(f"the engine failed: {payload['error'].get('message', payload['error'])}")
    choices = payload.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise EngineError("the engine sent an event without exactly one choice")
    choice: dict[str, Any] = choices[0]
    return choice


def _check_prompt(choice: dict[str, Any], prompt_ids: Sequence[int]) -> bool:
    used = choice.get("prompt_token_ids")
    if used is None:
        raise EngineError("the engine does not return token ids: vLLM 0.10.2 or later is needed")
    if used != list(prompt_ids):
        raise EngineError(f"the engine used {len(used)} prompt ids that are not the {len(prompt_ids)} sent")
    return True


def _logprobs(choice: dict[str, Any], count: int) -> tuple[float | None, ...]:
    given = (choice.get("logprobs") or {}).get("token_logprobs") or [None] * count
    if len(given) != count:
        raise EngineError(f"the engine sent {count} tokens with {len(given)} logprobs")
    return tuple(None if value is None or value <= IMPOSSIBLE_LOGPROB else float(value) for value in given)


def _finish(reason: str | None) -> Finish | None:
    match reason:
        case None | "stop" | "length":
            return reason
        case _:
            return "abort"


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
