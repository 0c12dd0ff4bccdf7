"""verl's own client of its rollout servers as an engine: the same requests that verl's agent loops make.

Built around verl 0.9.1's `LLMServerClient`, which gives a whole generation at once with the step of the weights that
sampled it. The client keeps a request id on one server, so the session's name is passed as id and prefixes stay cached.
Nothing of verl is imported here: the client is handed in.

A generation that verl interrupts for new weights comes back as what was sampled so far, with finish "abort"; the rest
is asked for again and has the newer step, so each token carries its own. `FullyAsyncLLMServerClient` does that by
itself and gives a range of steps without the places: all its tokens then count as of the oldest.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from ..errors import EngineError, EngineRefused
from ..models import CallSampling
from .base import Chunk, Finish, session_of
from .refusals import is_overflow, refusal_or_error


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

    def __init__(self, client: LLMServerClient) -> None:
        self._client = client

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """One chunk with the whole continuation."""
        if sampling.constraint is not None:
            raise EngineRefused("verl's rollout servers take no constraint: leave out response_format and tool_choice")
        try:
            output = await self._client.generate(
                session_of(request_id), prompt_ids=list(prompt_ids), sampling_params=_sampling_params(sampling)
            )
        except Exception as error:
            message = f"verl's rollout server failed on {request_id}: {error}"
            raise refusal_or_error(message, is_overflow(message)) from error
        ids = tuple(int(token) for token in output.token_ids)
        logprobs = tuple(output.log_probs) if output.log_probs is not None else (None,) * len(ids)
        if len(logprobs) != len(ids):
            raise EngineError(f"verl's rollout server sent {len(ids)} tokens with {len(logprobs)} logprobs")
        yield Chunk(ids, logprobs, _version(output.extra_fields), _finish(output, ids, sampling))

    async def abort(self, request_id: str) -> None:
        """Nothing: verl's client cannot abort one request, so its server finishes it and nobody reads the result."""

    def use_version(self, version: int) -> None:
        """Nothing: verl says the step with its tokens."""

    async def close(self) -> None:
        """Nothing: the client belongs to verl."""


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
    # A generation that weight updates interrupted has a range of steps, without the places: count the oldest.
    steps = [extra.get(name) for name in ("min_global_steps", "global_steps")]
    return next((int(step) for step in steps if step is not None), 0)


def _finish(output: TokenOutput, ids: tuple[int, ...], sampling: CallSampling) -> Finish:
    if output.stop_reason in ("aborted", "abort") or not ids:
        return "abort"
    # verl says "completed" for both ends.
    if ids[-1] in sampling.stop_token_ids or len(ids) < sampling.max_tokens:
        return "stop"
    return "length"
