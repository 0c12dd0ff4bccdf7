"""SGLang's own HTTP server as an engine: `/generate` with token ids, streamed, and `/abort_request` by id.

Ids are taken from the pairs of logprob and id, which SGLang gives for each sampled token. By its default an event
repeats all of them, with `--incremental-streaming-output` only those that are new; both are read, by the count of
completion tokens. The version is the server's `weight_version` where that is a number (`/update_weights...` sets it),
so tokens sampled after an update in the middle of a generation carry the new one; else the version that the proxy was
told.

SGLang gives logprobs after temperature and penalties but before top_p and top_k; with those they would not be of the
distribution sampled from, so such sampling is refused. Start it without SGLANG_RETURN_ORIGINAL_LOGPROB.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from ..errors import EngineError, EngineRefused
from ..models import CallSampling
from .base import Chunk, Finish
from .http import REFUSALS, EngineHttp, bearer_header, id_list
from .refusals import refusal_or_error

CONSTRAINTS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}
"""SGLang's names of what vLLM calls structured outputs."""


class SglangHttpEngine:
    """One SGLang server, or a router in front of several."""

    def __init__(self, base_url: str, version: int = 0, api_key: str | None = None) -> None:
        """`version` is the policy version that the server holds, unless it says one itself."""
        self._http = EngineHttp(base_url, bearer_header(api_key))
        self._version = version
        self._started = 0
        self._running: dict[str, str] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """Stream the continuation."""
        self._started += 1
        # The rest of an interrupted generation has the same request id, which the server may not have forgotten yet.
        name = self._running[request_id] = f"{request_id}/{self._started}"
        progress = Progress(self._version, sampling.stop_token_ids[:1])
        events = self._http.events("/generate", _body(prompt_ids, sampling, name))
        async with aclosing(events):
            async for payload in events:
                chunk = progress.chunk(payload)
                if chunk.finish is not None:
                    self._running.pop(request_id, None)
                yield chunk
        if not progress.is_finished:
            raise EngineError(f"{self._http.base_url} ended the stream of {request_id} without a finish reason")

    async def abort(self, request_id: str) -> None:
        """Tell the server, which otherwise finds out when it next writes."""
        name = self._running.pop(request_id, None)
        if name is not None:
            await self._http.send("/abort_request", {"rid": name})

    def use_version(self, version: int) -> None:
        """The server holds these weights now."""
        self._version = version

    async def close(self) -> None:
        """Close connections."""
        await self._http.close()


class Progress:
    """What of one generation has been seen."""

    def __init__(self, version: int, usual_stops: tuple[int, ...]) -> None:
        """`usual_stops`: tokens that end a turn without being worth a `stop_reason`."""
        self.is_finished = False
        self._usual_stops = usual_stops
        self._seen = 0
        self._told = version
        self._version = 0

    def chunk(self, payload: dict[str, Any]) -> Chunk:
        """The new tokens of an event."""
        meta = payload.get("meta_info")
        if not isinstance(meta, dict):
            raise EngineError("the engine sent an event without meta_info: is it an SGLang server?")
        finish, stop_reason = _finish(meta.get("finish_reason"))
        new = self._new_tokens(meta, is_last=finish is not None)
        self._version = max(self._version, _version(meta.get("weight_version"), self._told))
        self.is_finished = finish is not None
        ids, logprobs = tuple(int(pair[1]) for pair in new), tuple(_logprob(pair[0]) for pair in new)
        if output := payload.get("output_ids"):
            _check_ids(ids, output)
        return Chunk(ids, logprobs, self._version, finish, None if stop_reason in self._usual_stops else stop_reason)

    def _new_tokens(self, meta: dict[str, Any], is_last: bool) -> list[Any]:
        given = meta.get("output_token_logprobs") or []
        total = meta.get("completion_tokens", self._seen if is_last else None)
        if not isinstance(total, int) or total < self._seen:
            raise EngineError(f"the engine sent completion_tokens {total!r} after {self._seen}")
        seen, self._seen = self._seen, total
        if len(given) == total:
            return list(given[seen:])
        if len(given) == total - seen:
            return list(given)
        raise EngineError(f"the engine sent {len(given)} logprobs for {total} tokens, of which {seen} were known")


def _body(prompt_ids: Sequence[int], sampling: CallSampling, name: str) -> dict[str, Any]:
    if sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0):
        raise EngineRefused(
            f"SGLang gives no logprobs of what top_p {sampling.top_p:g} and top_k {sampling.top_k} leave: "
            "sample with top_p 1 and top_k -1, or use vLLM",
            is_the_sessions=True,
        )
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sampling.stop_token_ids,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        **_constraint(sampling.constraint),
    }
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return {
        "input_ids": id_list(prompt_ids),
        "sampling_params": params,
        "rid": name,
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": True,
    }


def _constraint(constraint: dict[str, Any] | None) -> dict[str, str]:
    if not constraint:
        return {}
    if constraint.get("json_object"):
        return {"json_schema": '{"type": "object"}'}
    ((kind, value),) = constraint.items()
    if kind not in CONSTRAINTS:
        raise EngineRefused(f"SGLang has no structured output {kind!r}: use one of {', '.join(CONSTRAINTS)}")
    return {CONSTRAINTS[kind]: value if isinstance(value, str) else orjson.dumps(value).decode()}


def _finish(reason: Any) -> tuple[Finish | None, int | str | None]:
    if reason is None:
        return None, None
    if not isinstance(reason, dict):
        raise EngineError(f"the engine sent finish_reason {reason!r}")
    match reason.get("type"):
        case "stop":
            return "stop", reason.get("matched")
        case "length":
            return "length", None
    if reason.get("status_code") is not None:
        message = f"the engine failed: {reason.get('message')}"
        raise refusal_or_error(message, reason["status_code"] in REFUSALS)
    return "abort", None


def _version(said: Any, told: int) -> int:
    return int(said) if isinstance(said, int) or (isinstance(said, str) and said.isdigit()) else told


def _logprob(value: Any) -> float | None:
    return None if value is None else float(value)


def _check_ids(ids: tuple[int, ...], output: list[int]) -> None:
    if tuple(output[len(output) - len(ids) :]) != ids:
        raise EngineError(f"the engine sent output_ids ending in {output[-3:]} with logprobs of {list(ids[-3:])}")
