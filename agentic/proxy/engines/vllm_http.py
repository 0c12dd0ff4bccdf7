"""vLLM's own HTTP server as an engine: token ids in and out through `/v1/completions`, streamed.

The prompt goes as ids, so no template, tokenizer or special token of the server plays a part; the server echoes the
ids it used and a difference is an error. Every sampling value is sent, since the server's defaults come from the
model's generation_config. Logprobs have to be those of the distribution sampled from: start the server with
`--logprobs-mode processed_logprobs` (its default gives them before temperature, top_p and top_k).

Closing the connection is how vLLM is told to abort a request; so giving up a generation needs no call of its own. A
generation that the server aborts (`/pause` for new weights) ends with finish "abort", and can be asked for again.
"""

from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from ..errors import EngineError
from ..models import CallSampling
from .base import Chunk, Finish
from .http import EngineHttp, bearer_header, id_json

IMPOSSIBLE_LOGPROB = -9999.0
"""What vLLM puts for minus infinity; a sampled token cannot have it, so it counts as missing."""


class VllmHttpEngine:
    """One vLLM server, or a router in front of several, at a base URL with or without `/v1`."""

    def __init__(self, base_url: str, model: str | None = None, version: int = 0, api_key: str | None = None) -> None:
        """`model` None means the server's only model; `version` is the policy version that the server holds."""
        self._http = EngineHttp(base_url, bearer_header(api_key))
        self._model = model
        self._version = version

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """Stream the continuation."""
        checked = finished = False
        version = self._version
        ids = id_json(prompt_ids)
        body = self._body(orjson.Fragment(ids), sampling)
        events = self._http.events("/v1/completions", body, echo=b'"prompt_token_ids":' + ids)
        async with aclosing(events):
            async for payload in events:
                choice = _choice(payload)
                checked = checked or _check_prompt(choice, prompt_ids)
                chunk = _chunk(choice, version)
                finished = chunk.finish is not None
                yield chunk
        if not finished:
            raise EngineError(f"{self._http.base_url} ended the stream of {request_id} without a finish reason")

    async def abort(self, request_id: str) -> None:
        """Nothing to do: the connection of a generation that was given up is closed."""

    def use_version(self, version: int) -> None:
        """The server holds these weights now."""
        self._version = version

    async def close(self) -> None:
        """Close connections."""
        await self._http.close()

    def _body(self, prompt: orjson.Fragment, sampling: CallSampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": sampling.stop_token_ids,
            "logprobs": 0,
            "stream": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
        }
        optional = {"model": self._model, "seed": sampling.seed, "structured_outputs": sampling.constraint}
        return body | {name: value for name, value in optional.items() if value is not None}


def _chunk(choice: dict[str, Any], version: int) -> Chunk:
    ids = tuple(choice.get("token_ids") or ())
    finish = _finish(choice.get("finish_reason"))
    return Chunk(ids, _logprobs(choice, len(ids)), version, finish, choice.get("stop_reason"))


def _choice(payload: dict[str, Any]) -> dict[str, Any]:
    choices = payload.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise EngineError("the engine sent an event without exactly one choice")
    choice: dict[str, Any] = choices[0]
    return choice


def _check_prompt(choice: dict[str, Any], prompt_ids: Sequence[int]) -> bool:
    used = choice.get("prompt_token_ids")
    if used is None:
        raise EngineError("the engine does not return token ids: vLLM 0.10.2 or later is needed")
    if used is not True and not _are_equal(used, prompt_ids):
        raise EngineError(f"the engine used {len(used)} prompt ids that are not the {len(prompt_ids)} sent")
    return True


def _are_equal(used: list[int], sent: Sequence[int]) -> bool:
    # Arrays compare ten times faster than lists: 0.4 ms instead of 3 for 64k ids.
    if not isinstance(sent, array):
        return used == list(sent)
    try:
        return array(sent.typecode, used) == sent
    except (OverflowError, TypeError):
        return False


def _logprobs(choice: dict[str, Any], count: int) -> tuple[float | None, ...]:
    given = (choice.get("logprobs") or {}).get("token_logprobs") or [None] * count
    if len(given) != count:
        raise EngineError(f"the engine sent {count} tokens with {len(given)} logprobs")
    if None not in given and min(given, default=0.0) > IMPOSSIBLE_LOGPROB:
        return tuple(map(float, given))
    return tuple(None if value is None or value <= IMPOSSIBLE_LOGPROB else float(value) for value in given)


def _finish(reason: str | None) -> Finish | None:
    match reason:
        case None | "stop" | "length":
            return reason
        case _:
            return "abort"
