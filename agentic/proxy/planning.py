"""The planning stage: which tokens of a request are held already, and which are new.

Goes on from the longest held beginning of the conversation if the renderer can show that the template only appends
there; otherwise the whole conversation is encoded, and the graph reuses what the ids have in common with held paths.
No I/O.
"""

from collections.abc import Sequence

from .conversation import Json, Message, conversation_keys
from .dialects.base import CallRequest
from .graph import Plan
from .renderers.base import HeldTurn, Renderer
from .session import Session


def plan_call(session: Session, renderer: Renderer, request: CallRequest) -> Plan:
    """Where the call attaches to the session's graph and what it adds."""
    messages, tools = request.messages, request.tools or None
    found = session.find_held(conversation_keys(messages, tools), messages)
    if found is not None:
        count, number = found
        node = session.graph.nodes[number]
        held = HeldTurn(session.graph.path_ids(node.parent), node.ids, count)
        suffix = renderer.bridge(held, messages, tools)
        if suffix is not None:
            return session.graph.plan_suffix(number, suffix)
    ids = renderer.render(messages, tools)
    return session.graph.plan_render(ids, _lead(renderer, messages, tools, ids))


def _lead(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Json] | None, ids: list[int]) -> int:
    """How much of a prompt with earlier turns in it is the first prompt: what comes before the first of them."""
    first = next((number for number, message in enumerate(messages) if message.role == "assistant"), 0)
    if first == 0:
        return len(ids)
    lead = renderer.render(messages[:first], tools)
    return len(lead) if ids[: len(lead)] == lead else len(ids)
