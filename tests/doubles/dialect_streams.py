"""A reply as a stream, cut anywhere, and what an SDK's own accumulator makes of it.

The transport is the SDKs' own seam: it answers with the events of the real writers. Nothing is listening.
"""

from collections.abc import Sequence
from typing import Any

import anthropic
import httpx2
import openai
from hypothesis import strategies as st

from agentic.proxy.conversation import (
    CallArguments,
    Message,
    ReasoningDelta,
    ReplyDelta,
    TextDelta,
    message_deltas,
)
from agentic.proxy.dialects.base import CallReply, DeltaChunk, Dialect, ReplyHead


def a_reply(message: Message, finish: str = "stop") -> CallReply:
    """A committed reply of five tokens."""
    return CallReply(
        "0123456789abcdef" * 2, 7, "policy", message, finish, None, [1, 2, 3], [65, 66, 67, 68, 69], [-0.5] * 5
    )


@st.composite
def chunkings(draw: st.DrawFn, message: Message) -> list[DeltaChunk]:
    """The reply's deltas and ids, cut into chunks at random."""
    deltas: list[ReplyDelta] = []
    for delta in message_deltas(message):
        at = draw(st.integers(0, 12))
        match delta:
            case TextDelta(text) if 0 < at < len(text):
                deltas += [TextDelta(text[:at]), TextDelta(text[at:])]
            case ReasoningDelta(text) if 0 < at < len(text):
                deltas += [ReasoningDelta(text[:at]), ReasoningDelta(text[at:])]
            case CallArguments(index, text) if 0 < at < len(text):
                deltas += [CallArguments(index, text[:at]), CallArguments(index, text[at:])]
            case _:
                deltas.append(delta)
    size = draw(st.integers(1, max(len(deltas), 1)))
    cut = [tuple(deltas[start : start + size]) for start in range(0, len(deltas), size)] or [()]
    first = DeltaChunk(cut[0], (65, 66, 67), (-0.5,) * 3)
    rest = [DeltaChunk(part, (), ()) for part in cut[1:]]
    return [first, *rest, DeltaChunk((), (68, 69), (-0.5,) * 2)]


def stream_text(dialect: Dialect[Any], request: Any, reply: CallReply, chunks: Sequence[DeltaChunk]) -> str:
    """All events of a streamed reply."""
    head = ReplyHead(reply.reply_id, reply.created, reply.model, reply.prompt_ids)
    writer = dialect.writer(request, head, chr)
    events = [*writer.begin(), *(event for chunk in chunks for event in writer.delta(chunk)), *writer.end(reply)]
    return "".join(events)


def openai_client(answer: str) -> openai.OpenAI:
    """OpenAI's SDK, answered with these events."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=EVENTS, text=answer))
    return openai.OpenAI(base_url="http://test/v1", api_key="k", http_client=httpx2.Client(transport=transport))


def anthropic_client(answer: str) -> anthropic.Anthropic:
    """Anthropic's SDK, answered with these events."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=EVENTS, text=answer))
    return anthropic.Anthropic(base_url="http://test", api_key="k", http_client=httpx2.Client(transport=transport))


EVENTS = {"content-type": "text/event-stream"}
