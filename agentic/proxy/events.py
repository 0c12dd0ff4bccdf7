"""What can happen to a session, as records: applied to the session's state and written to the journal.

A session is the fold of its events, so a journal cut at any record gives an earlier state of the same session
(invariant 10). A call is a `Started` (the intent, written before the engine is asked), then a `Committed` (what the
engine gave, written before anybody is told that it is all) or a `Failed`. `schema_version` is that of the record
layout; newer ones are refused, and what an older one lacks has a default.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .conversation import Message
from .models import Ending, SessionSpec, Version

SCHEMA_VERSION = 2

type TokenId = Annotated[int, Field(ge=0, lt=2**32)]
"""As token graphs hold it: what an engine says beyond that is refused here, before it is written."""


class Record(BaseModel):
    """Base of the events."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Opened(Record):
    """The first event of every session."""

    kind: Literal["opened"] = "opened"
    schema_version: int = SCHEMA_VERSION
    spec: SessionSpec
    at: float
    expires_at: float | None = None
    """When the session's key expires and what nobody sealed is sealed; None: never."""


class Started(Record):
    """A generation is about to be started. Without a later record of the call, the process ended in between."""

    kind: Literal["started"] = "started"
    call: int
    body_digest: str
    idempotency_key: str | None
    overridden: tuple[str, ...]
    supersedes: int | None = None
    """The failed call that is tried again with this one."""
    at: float = 0.0
    constrained: bool = False
    """Whether the engine holds the reply to a format or to a tool."""


class Committed(Record):
    """What a generation sampled, and where it hangs in the token graph."""

    kind: Literal["committed"] = "committed"
    call: int
    at: float
    anchor: int | None
    context: tuple[TokenId, ...]
    first_prompt: int
    ids: tuple[TokenId, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[Version, ...]
    finish: str
    stop_reason: int | str | None
    delivered: bool
    """Whether a client was waiting for it."""
    answered: bool
    """Whether it is a whole reply that a retry may get; False for what was left of an aborted generation."""
    state_key: str | None
    """Key of the conversation with this reply; None if there is no whole reply."""
    verbatim: str | None
    cut: str | None = None
    """Why an unanswered generation ended: abandoned, sealed, timeout, engine (it failed) or refused (the engine will
    not do what the client asked)."""
    messages: tuple[Message, ...] | None = None
    """What a later request may continue by the reply's id: the request's new messages and the reply; None: nothing."""
    continues: int | None = None
    """The call whose conversation comes before `messages`."""


class Delivered(Record):
    """A client did, or did not, receive a reply."""

    kind: Literal["delivered"] = "delivered"
    call: int
    delivered: bool


class Failed(Record):
    """A generation gave no reply and no token that is known; a retry samples anew."""

    kind: Literal["failed"] = "failed"
    call: int
    cut: str = "engine"
    """As in Committed; restart: the process ended while it ran."""


class Overflowed(Record):
    """A call was refused because the budget was used up."""

    kind: Literal["overflowed"] = "overflowed"


class Lost(Record):
    """Capture lost something; the session is incomplete from here on."""

    kind: Literal["lost"] = "lost"
    reason: str


class Sealed(Record):
    """The last event: nothing may follow."""

    kind: Literal["sealed"] = "sealed"
    at: float
    digest: str
    ending: Ending = "sealed"


type Event = Annotated[
    Opened | Started | Committed | Delivered | Failed | Overflowed | Lost | Sealed, Field(discriminator="kind")
]
EVENTS: TypeAdapter[Event] = TypeAdapter(Event)
