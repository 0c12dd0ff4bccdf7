"""verl's own client of its rollout servers as an engine: the same requests that verl's agent loops make.

Built around verl 0.9.1's `LLMServerClient`, which gives a whole generation at once with the step of the weights that
sampled it. The client keeps a request id on one server, so the session's name is passed as id and prefixes stay cached.
Nothing of verl is imported here: the client is handed in.

A generation that verl interrupts for new weights comes back as what was sampled so far, with finish "abort"; the rest
is asked for again and has the newer step, so each token carries its own. `FullyAsyncLLMServerClient` does that by
itself and gives a range of steps without the places, so it is asked for one attempt at a time, as its base is.

verl cannot abort one request: its client gives each an id that nobody else learns, and what its servers have for it
does not fit vLLM 0.24. So a generation that is given up goes on there to its end, and `abort` waits for that, within a
limit: what was sampled is recorded although nobody got it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import EngineError, EngineRefused
from ..models import CallSampling
from .base import Chunk, Finish, session_of
from .refusals import is_overflow, refusal_or_error

logger = logging.getLogger(__name__)

RESUMING_CLIENT = "FullyAsyncLLMServerClient"
"""verl's class that resumes by itself."""
TURNED_AWAY_SECONDS = 1.0
"""How long a server that interrupted a request before its first token is left alone, as verl's own client does."""


class TokenOutput(Protocol):
    """What of verl's class of this name is read."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class LLMServerClient(Protocol):
    """What of verl's class of this name is called."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        """Sample a continuation."""
        ...


class VerlClientEngine:
    """Samples through verl's servers; versions are verl's global steps."""

    def __init__(self, client: LLMServerClient, patience_seconds: float = 60.0) -> None:
        """`patience_seconds`: how long `abort` waits for the end of what is given up."""
        self._attempt = _attempt_of(client)
        self._patience_seconds = patience_seconds
        self._running: dict[str, asyncio.Task[Chunk]] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """One chunk with the whole continuation."""
        if sampling.constraint is not None:
            raise EngineRefused("verl's rollout servers take no constraint: leave out response_format and tool_choice")
        sampled = asyncio.create_task(self._sample(list(prompt_ids), sampling, request_id))
        self._running[request_id] = sampled
        sampled.add_done_callback(partial(self._forget, request_id))
        yield await asyncio.shield(sampled)

    async def abort(self, request_id: str) -> Chunk | None:
        """What comes of the request, if that is known in time."""
        sampled = self._running.get(request_id)
        if sampled is None:
            return None
        await asyncio.wait({sampled}, timeout=self._patience_seconds)
        if not sampled.done():
            sampled.cancel()
            logger.warning("%s: verl samples on after %g s, what comes is lost", request_id, self._patience_seconds)
            return None
        return None if sampled.cancelled() or sampled.exception() is not None else sampled.result()

    def use_version(self, version: int) -> None:
        """Nothing: verl says the step with its tokens."""

    async def close(self) -> None:
        """Wait for nothing any more; the client belongs to verl."""
        for sampled in self._running.values():
            sampled.cancel()

    async def _sample(self, prompt_ids: list[int], sampling: CallSampling, request_id: str) -> Chunk:
        try:
            output = await self._attempt(
                session_of(request_id), prompt_ids=prompt_ids, sampling_params=_sampling_params(sampling)
            )
        except Exception as error:
            message = f"verl's rollout server failed on {request_id}: {error}"
            raise refusal_or_error(message, is_overflow(message)) from error
        ids = tuple(int(token) for token in output.token_ids)
        logprobs = tuple(output.log_probs) if output.log_probs is not None else (None,) * len(ids)
        if len(logprobs) != len(ids):
            raise EngineError(f"verl's rollout server sent {len(ids)} tokens with {len(logprobs)} logprobs")
        if not ids:
            await asyncio.sleep(TURNED_AWAY_SECONDS)
        return Chunk(ids, logprobs, _version(output.extra_fields), _finish(output, ids, sampling))

    def _forget(self, request_id: str, sampled: asyncio.Task[Chunk]) -> None:
        if self._running.get(request_id) is sampled:
            del self._running[request_id]
        if not sampled.cancelled():
            sampled.exception()  # of one that was given up, nobody else asks


def _attempt_of(client: LLMServerClient) -> Callable[..., Coroutine[Any, Any, TokenOutput]]:
    """What samples until the end or an interruption, whichever is first."""
    resuming = next((cls for cls in type(client).__mro__ if cls.__name__ == RESUMING_CLIENT), None)
    if resuming is None:
        return client.generate
    base: Any = resuming.__mro__[1]
    return partial(base.generate, client)


def _sampling_params(sampling: CallSampling) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": True,
    }
    return params if sampling.seed is None else params | {"seed": sampling.seed}


def _version(extra: dict[str, Any]) -> int:
    # A client that resumed by itself has a range of steps, without the places: count the oldest.
    steps = [extra.get(name) for name in ("min_global_steps", "global_steps")]
    return next((int(step) for step in steps if step is not None), 0)


def _finish(output: TokenOutput, ids: tuple[int, ...], sampling: CallSampling) -> Finish:
    if output.stop_reason in ("aborted", "abort") or not ids:
        return "abort"
    # verl says "completed" for both ends.
    if ids[-1] in sampling.stop_token_ids or len(ids) < sampling.max_tokens:
        return "stop"
    return "length"
