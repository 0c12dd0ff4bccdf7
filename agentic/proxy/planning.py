"""The planning stage: which tokens of a request are held already, and which are new.

Goes on from the longest held beginning of the conversation if the renderer can show that the template only appends
there; otherwise the whole conversation is encoded, and the graph reuses what the ids have in common with held paths.
A text completion goes on from the longest held text that its prompt begins with. No I/O.

In steps, so that the caller can tell beforehand how much text a step encodes, and where to run it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .conversation import Json, KnownConversations, Message
from .dialects.base import CallRequest
from .graph import Plan
from .renderers.base import HeldTurn, Renderer
from .session import Session


@dataclass(frozen=True, slots=True)
class Found:
    """What of a request is held."""

    keys: Sequence[str]
    """Of each beginning of the conversation."""
    held: tuple[int, int] | None
    """How many messages are held, and the sampled node that they end with."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with the key of each beginning of the conversation."""

    plan: Plan
    keys: Sequence[str] = ()


def find(session: Session, request: CallRequest, known: KnownConversations) -> Found:
    """The longest held beginning of a request."""
    keys = known.keys(request.messages, request.tools or None)
    return Found(keys, session.find_held(keys, request.messages))


def plan_rest(session: Session, renderer: Renderer, request: CallRequest, found: Found) -> Planned | None:
    """The call as what is held with the rest after it; None if nothing is held or the template does not append."""
    if found.held is None:
        return None
    count, number = found.held
    node = session.graph.nodes[number]
    held = HeldTurn(session.graph.path_ids(node.parent), node.ids, count)
    suffix = renderer.bridge(held, request.messages, request.tools or None)
    return None if suffix is None else Planned(session.graph.plan_suffix(number, suffix), found.keys)


def plan_whole(session: Session, renderer: Renderer, request: CallRequest, found: Found) -> Planned:
    """The call by the ids of all that it says."""
    if request.prompt is not None:
        return Planned(_plan_text(session, renderer, request.prompt))
    messages, tools = request.messages, request.tools or None
    ids = renderer.render(messages, tools)
    return Planned(session.graph.plan_render(ids, _lead(renderer, messages, tools, ids)), found.keys)


def _plan_text(session: Session, renderer: Renderer, prompt: str | tuple[int, ...]) -> Plan:
    if isinstance(prompt, str):
        found = session.find_text(prompt)
        if found is not None:
            length, number = found
            return session.graph.plan_suffix(number, renderer.encode(prompt[length:]))
        prompt = tuple(renderer.encode(prompt))
    return session.graph.plan_render(prompt, len(prompt))


def _lead(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Json] | None, ids: list[int]) -> int:
    """How much of a prompt with earlier turns in it is the first prompt: what comes before the first of them."""
    first = next((number for number, message in enumerate(messages) if message.role == "assistant"), 0)
    if first == 0:
        return len(ids)
    lead = renderer.render(messages[:first], tools)
    return len(lead) if ids[: len(lead)] == lead else len(ids)
