"""A reply as the agent plane sees it: known by its head at once, followed piece by piece, whole once it is committed.

Each reader has a parser and a place in the draft of its own, so a retry that joins gets everything from the beginning
and a slow client costs nothing but its own place.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from .dialects.base import CallReply, CallRequest, DeltaChunk, ReplyHead
from .generating import Draft
from .graph import are_finite
from .renderers.base import Renderer, ReplyParser

MISSING_LOGPROB = -9999.0
"""What clients are shown for a logprob that the engine did not give; vLLM shows the same for minus infinity."""


@dataclass(frozen=True, slots=True)
class LiveReply:
    """One reply to one client."""

    head: ReplyHead
    result: Callable[[], Awaitable[CallReply]]
    """The whole reply, once it is committed; raises why there is none. May be asked again."""
    _draft: Draft
    _parser: ReplyParser

    async def begun(self) -> None:
        """Until there is something to show; raises why nothing ever will be."""
        await self._draft.wait_for_more(0)
        if not self._draft.ids:
            await self.result()

    async def deltas(self) -> AsyncIterator[DeltaChunk]:
        """The reply as it comes, from its beginning; ends early where the generation was cut. Read once."""
        seen = 0
        draft = self._draft
        while True:
            await draft.wait_for_more(seen)
            ids = tuple(draft.ids[seen:])
            if not ids:
                break
            logprobs = tuple(shown_logprobs(draft.logprobs[seen : seen + len(ids)], len(ids)))
            seen += len(ids)
            yield DeltaChunk(tuple(self._parser.feed(ids)), ids, logprobs)
        if draft.finish in ("stop", "length"):
            rest = tuple(self._parser.finish())
            if rest:
                yield DeltaChunk(rest, (), ())


def make_parser(renderer: Renderer, request: CallRequest) -> ReplyParser:
    """The parser of a request's reply."""
    return renderer.stream_parser(request.callable_tools) if request.prompt is None else renderer.text_parser()


def closed_draft(ids: Sequence[int], logprobs: Sequence[float], finish: str, stop_reason: int | str | None) -> Draft:
    """The draft of a generation that is over."""
    draft = Draft()
    draft.ids, draft.logprobs, draft.stop_reason = list(ids), list(logprobs), stop_reason
    draft.finish = "length" if finish == "length" else "stop"
    draft.close()
    return draft


def shown_logprobs(logprobs: Sequence[float | None], count: int) -> list[float]:
    """As many numbers that JSON has as there are tokens."""
    if len(logprobs) == count and are_finite(logprobs):
        return list(logprobs)
    shown = [MISSING_LOGPROB if value is None or not math.isfinite(value) else value for value in logprobs[:count]]
    return shown + [MISSING_LOGPROB] * (count - len(shown))
