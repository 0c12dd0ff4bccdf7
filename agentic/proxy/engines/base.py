"""What the proxy asks of an inference engine: token ids in, token ids with logprobs and policy version out."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..models import CallSampling

type Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the tokens of a generation, in order."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """Under the distribution sampled from; None where the engine gave none, which makes the session incomplete."""
    version: int
    """Policy version that sampled these tokens; never lower than that of an earlier chunk."""
    finish: Finish | None = None
    """Set on the last chunk. "abort": interrupted, by `abort` or for a change of weights; the gateway asks for the rest
    with the tokens so far as part of the prompt, once sampling may go on."""
    stop_reason: int | str | None = None
    """As vLLM reports it: the stop token other than the model's own end token."""


class Engine(Protocol):
    """Samples continuations. One object serves all sessions of a proxy, concurrently."""

    def generate(self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str) -> AsyncIterator[Chunk]:
        """Sample after `prompt_ids`; a repeat samples anew.

        `request_id` is `<session>/<call>`, unique for each call, so that an engine with several servers can keep a
        session on one. The rest of an interrupted generation comes with the same id. Raises EngineError, and
        EngineRefused for what it will never do; closing or cancelling the iterator gives the generation up.
        """
        ...

    async def abort(self, request_id: str) -> Chunk | None:
        """Stop working on a request as soon as possible; harmless if it is finished or unknown.

        Gives what was sampled and had not been given out, where the engine still learns it: it belongs to the record
        of a generation that is cut. Takes as long as the engine needs for that, so it has a limit of its own.
        """
        ...

    def use_version(self, version: int) -> None:
        """The weights are of this version from now on: what is generated later carries it, unless the engine itself
        says a version with its tokens. Called while no generation runs; never with a lower version than before."""
        ...

    async def close(self) -> None:
        """Release connections; the proxy server calls it once when it stops. Harmless when repeated."""
        ...


def session_of(request_id: str) -> str:
    """The session part of a request id."""
    return request_id.rpartition("/")[0]
