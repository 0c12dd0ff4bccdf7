"""A deterministic engine without a model: what it samples is scripted. For tests, benchmarks and dry runs.

Like a real engine it respects `max_tokens` and stops after a stop token; unlike one it knows the answers before.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import EngineError
from ..models import CallSampling
from .base import Chunk, Finish


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One scripted generation."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...] | None = None
    """None makes up -0.5 for each token."""
    version: int = 0
    later_versions: tuple[tuple[int, int], ...] = ()
    """(n, v): from the n-th token on the version is v, as if weights had changed under way. A chunk never spans two."""
    chunk_tokens: int = 0
    """Tokens of a chunk; 0 gives all in one."""
    chunk_sizes: tuple[int, ...] = ()
    """Tokens of the first chunks, where they differ from `chunk_tokens`."""
    first_delay_seconds: float = 0.0
    """Wait before anything: what reading the prompt takes."""
    delay_seconds: float = 0.0
    """Wait before each chunk."""
    fail_after: int | None = None
    """Raise EngineError after so many chunks."""
    abort_after: int | None = None
    """Give the generation up after so many chunks, as an engine does whose weights are about to change."""
    hang_after: int | None = None
    """Give nothing more after so many chunks, until it is cancelled."""


type Script = Callable[[Sequence[int], CallSampling, str], ScriptedReply]


@dataclass(frozen=True, slots=True)
class Received:
    """What the engine was asked, for assertions."""

    prompt_ids: tuple[int, ...]
    sampling: CallSampling
    request_id: str


class ScriptedEngine:
    """Answers by a function of the prompt, or by a list of replies used up in order."""

    def __init__(self, script: Script | Sequence[ScriptedReply]) -> None:
        self._script = script if callable(script) else _in_order(script)
        self.received: list[Received] = []
        self.aborted: list[str] = []
        self.closed = False
        self._version = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """Play the scripted reply."""
        self.received.append(Received(tuple(prompt_ids), sampling, request_id))
        reply = self._script(prompt_ids, sampling, request_id)
        ids, finish = _cut(reply.ids, sampling)
        if not ids:
            raise EngineError("the script gives no tokens")
        logprobs = (reply.logprobs or (-0.5,) * len(reply.ids))[: len(ids)]
        await _wait(reply.first_delay_seconds)
        for number, (start, end) in enumerate(_spans(reply, len(ids))):
            await _wait(reply.delay_seconds)
            if number == reply.hang_after:
                await asyncio.Event().wait()
            if number == reply.fail_after:
                raise EngineError(f"scripted failure after {number} chunks")
            version = max(_version_at(reply, start), self._version)
            if number == reply.abort_after:
                yield Chunk((), (), version, "abort")
                return
            yield Chunk(ids[start:end], logprobs[start:end], version, finish if end == len(ids) else None)

    async def abort(self, request_id: str) -> Chunk | None:
        """Note the request; all that was sampled has been given."""
        self.aborted.append(request_id)
        return None

    def use_version(self, version: int) -> None:
        """Later chunks carry at least this version."""
        self._version = version

    async def close(self) -> None:
        """Note the closing."""
        self.closed = True


async def _wait(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


def _spans(reply: ScriptedReply, count: int) -> Iterator[tuple[int, int]]:
    sizes = iter(reply.chunk_sizes)
    changes = [place for place, _ in reply.later_versions]
    start = 0
    while start < count:
        end = min(count, start + (next(sizes, None) or reply.chunk_tokens or count))
        end = min([end, *(place for place in changes if start < place < end)])
        yield start, end
        start = end


def _version_at(reply: ScriptedReply, position: int) -> int:
    return max([reply.version, *(version for place, version in reply.later_versions if place <= position)])


def _cut(ids: tuple[int, ...], sampling: CallSampling) -> tuple[tuple[int, ...], Finish]:
    for position, token in enumerate(ids[: sampling.max_tokens]):
        if token in sampling.stop_token_ids:
            return ids[: position + 1], "stop"
    if len(ids) > sampling.max_tokens:
        return ids[: sampling.max_tokens], "length"
    return ids, "length" if len(ids) == sampling.max_tokens else "stop"


def _in_order(replies: Sequence[ScriptedReply]) -> Script:
    left = iter(replies)

    def script(_prompt_ids: Sequence[int], _sampling: CallSampling, request_id: str) -> ScriptedReply:
        reply = next(left, None)
        if reply is None:
            raise EngineError(f"the script has no reply left for {request_id}")
        return reply

    return script
