"""The composing stage: what a request continues, or refers to, is put in its place. Pure.

A stored reply is the session's own (invariant 9), and stands in the journal, so a chain of replies survives a restart.
Its calls carry ids in the Responses API's form, which is the only one that stores; so a result that comes later finds
the call that it answers.
"""

from dataclasses import dataclass, replace

from .conversation import Message
from .dialects.base import REFERENCE, CallRequest, tool_call_id
from .dialects.content import normal_form
from .session import Session

STORED_CALL_PREFIX = "call_"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it is worked on: with the conversation that it continues, if it names one."""

    request: CallRequest
    own_messages: tuple[Message, ...]
    """Of the request alone, to be stored."""
    continues: int | None


def compose(session: Session, request: CallRequest) -> Asked:
    """The request with its whole conversation; InvalidRequest for a reply that this session did not store."""
    lead, own = request.messages[: request.lead], request.messages[request.lead :]
    refers = any(message.role == REFERENCE for message in own)
    if refers:
        own = tuple(session.stored_reply(m.content) if m.role == REFERENCE else m for m in own)
    if not refers and not lead and request.continues is None:
        return Asked(request, own, None)
    earlier = session.find_stored(request.continues) if request.continues is not None else None
    held = session.conversation_of(earlier) if earlier is not None else ()
    return Asked(replace(request, messages=normal_form((*lead, *held, *own))), own, earlier)


def as_stored(reply: Message, reply_id: str) -> Message:
    """A reply as later requests continue it."""
    calls = [
        replace(call, id=tool_call_id(STORED_CALL_PREFIX, reply_id, index))
        for index, call in enumerate(reply.tool_calls)
    ]
    return replace(reply, tool_calls=tuple(calls))
