"""What crosses the proxy's rim: specification and handle of a session, and what comes back when it is sealed.

Invariants (numbers of docs/architecture.md):
2. The four `response_*` lists and `versions` of a Trajectory are equally long; `versions` belongs to the response.
3. Over all trajectories of a complete session, each sampled token that a client received has mask 1 exactly once.
8. An incomplete session has mask 0 everywhere and says why.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .conversation import Json

type Version = Annotated[int, Field(ge=0, lt=2**32)]
"""A policy version, as token graphs hold it."""
type Ending = Literal["sealed", "expired"]

SESSION_ID = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}")
"""Ids travel in URLs, keys and file names, so only unreserved characters, and no leading dot."""


def check_session_id(value: str) -> str:
    """The id, or ValueError if no session can have it."""
    if SESSION_ID.fullmatch(value) is None:
        shown = value if len(value) <= 200 else f"{value[:200]}..."
        raise ValueError(f"session_id {shown!r} may hold 1 to 200 of A-Z a-z 0-9 . _ ~ - and no leading dot")
    return value


class Sampling(BaseModel):
    """How every call of a session is sampled; a client's own values never count."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    temperature: float = Field(ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    """-1 means all tokens."""
    repetition_penalty: float = Field(1.0, gt=0)
    max_tokens: int = Field(gt=0)
    """Cap of one call, end-of-turn token included."""
    seed: int | None = None


class CallSampling(Sampling):
    """The sampling of one call as the engine gets it: `max_tokens` is what this call may use."""

    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a turn; the one that did is part of the sampled ids."""
    constraint: Json | None = None
    """What the reply is held to, in vLLM's terms of structured outputs: exactly one of `{"json": schema}`,
    `{"json_object": true}`, `{"regex": pattern}`, `{"grammar": text}`, `{"structural_tag": text}`. An engine that
    cannot do it raises EngineRefused."""


class SessionSpec(BaseModel):
    """One rollout, as the control side asks for it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    session_id: str
    sampling: Sampling
    max_prompt_tokens: int = Field(gt=0)
    """Room of the first prompt of a path."""
    max_response_tokens: int = Field(gt=0)
    """Room of everything after the first prompt on a path, observations included."""
    max_calls: int = Field(gt=0)
    """Generations that the session may start. A retry is not a new one, and one that engine or proxy lost without a
    token on record does not count, up to as many again."""
    max_sampled_tokens: int | None = Field(None, gt=0)
    """Tokens that all calls together may sample; None: as many as the other limits allow."""
    max_parallel_calls: int | None = Field(None, gt=0)
    """Generations that may run at the same time; None: any number."""
    max_body_bytes: int | None = Field(None, gt=0)
    """Largest body of an agent's request; None: what the proxy takes."""
    lifetime_seconds: float | None = Field(None, gt=0)
    """How long after it was opened the session's key is good; then the session is sealed if nobody did. None: as long
    as the proxy's settings say."""
    model: str = "policy"
    """The model's name in replies."""

    @field_validator("session_id")
    @classmethod
    def _check_session_id(cls, value: str) -> str:
        return check_session_id(value)


class SessionHandle(BaseModel):
    """What an agent needs to reach its session."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session_id: str
    base_url: str
    api_key: str = Field(repr=False)


class Trajectory(BaseModel):
    """One path through the token graph, from the first prompt to the last sampled token."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    prompt_ids: list[int]
    response_ids: list[int]
    """Everything after the first prompt: sampled turns, observations and template tokens between them."""
    response_mask: list[int]
    """1 where the token was sampled, received by a client, and has its loss in this trajectory."""
    response_logprobs: list[float]
    """Log-probability under the distribution sampled from; 0.0 by definition where the mask is 0."""
    versions: list[int]
    """Policy version that sampled the token; -1 where the token was not sampled."""

    @property
    def has_loss(self) -> bool:
        """Whether anything here trains; paths without loss are kept as a record."""
        return any(self.response_mask)


class SealedSession(BaseModel):
    """A finished session: nothing is added to it any more."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    session_id: str
    digest: str
    """SHA-256 over all other fields; equal content has an equal digest."""
    complete: bool
    """False if capture lost anything; then every mask is 0."""
    incomplete_reason: str | None
    overflowed: bool
    """Whether a call was refused because the budget was used up."""
    calls: int
    """Generations started."""
    sampled_tokens: int
    """All tokens sampled, received or not."""
    undelivered_tokens: int
    """Sampled tokens that no client received; they have mask 0."""
    overridden: dict[str, int]
    """How often a client asked for a sampling value that the session's own replaced, by name; also what it sent that
    the model was not shown (`tools.web_search`)."""
    constrained_calls: int = 0
    """Generations that the engine held to a format or a tool, as the client asked (response_format, tool_choice): what
    they sampled from is the policy's distribution cut down to that."""
    ending: Ending = "sealed"
    """expired: nobody sealed it in time, so the proxy did."""
    cut: dict[str, int] = {}
    """Generations of which no whole reply came, by why: abandoned by their client, sealed, timeout, engine (it failed),
    refused (by the engine, for what the client asked), restart, and what the proxy could not do (proxy, journal)."""
    trajectories: list[Trajectory]


class SessionInfo(BaseModel):
    """One session in a list."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    session_id: str
    phase: str
    """open or sealed."""
    ending: Ending | None
    """How a sealed session ended."""
    calls: int
    running: int
    """Generations under way."""
    sampled_tokens: int
    opened_at: float
    expires_at: float | None
    idle_seconds: float
    """Since the last call or heartbeat ended; 0 while one runs."""


class Dropped(BaseModel):
    """A session was forgotten."""

    model_config = ConfigDict(extra="forbid")

    dropped: str


class Resume(BaseModel):
    """Sampling may go on."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    version: Version | None = None
    """Policy version of the weights that the engine holds now; None: unchanged, or the engine says it with tokens."""


class Paused(BaseModel):
    """Whether sampling is paused, and how many generations that concerns."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    paused: bool
    interrupted: int
    """Generations that were stopped by this call and go on after the next resume."""
