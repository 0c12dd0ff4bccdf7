"""What can happen to a session, as records: applied to the session's state and written to the journal.

A session is the fold of its events, so a journal cut at any record gives an earlier state of the same session
(invariant 10). `schema_version` is that of the record layout; newer ones are refused.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .models import SessionSpec

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of the events."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Opened(Record):
    """The first event of every session."""

    kind: Literal["opened"] = "opened"
    schema_version: int = SCHEMA_VERSION
    spec: SessionSpec
    at: float


class Started(Record):
    """A generation was started; written together with what became of it, so recovery sees no call that was cut off."""

    kind: Literal["started"] = "started"
    call: int
    body_digest: str
    idempotency_key: str | None
    overridden: tuple[str, ...]
    supersedes: int | None = None
    """The failed call that an SDK tries again with this one."""


class Committed(Record):
    """What a generation sampled, and where it hangs in the token graph."""

    kind: Literal["committed"] = "committed"
    call: int
    at: float
    anchor: int | None
    context: tuple[int, ...]
    first_prompt: int
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]
    finish: str
    stop_reason: int | str | None
    delivered: bool
    """Whether a client was waiting for it."""
    answered: bool
    """Whether it is a whole reply that a retry may get; False for what was left of an aborted generation."""
    state_key: str | None
    """Key of the conversation with this reply; None if there is no whole reply."""
    verbatim: str | None


class Delivered(Record):
    """A client did, or did not, receive a reply."""

    kind: Literal["delivered"] = "delivered"
    call: int
    delivered: bool


class Failed(Record):
    """A generation gave no reply; a retry samples anew."""

    kind: Literal["failed"] = "failed"
    call: int


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


type Event = Annotated[
    Opened | Started | Committed | Delivered | Failed | Overflowed | Lost | Sealed, Field(discriminator="kind")
]
EVENTS: TypeAdapter[Event] = TypeAdapter(Event)
