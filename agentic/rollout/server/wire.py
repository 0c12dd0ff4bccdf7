"""What client and server say to each other: plain models, the source of the server's OpenAPI document.

A trial is ordered under its id. An order names its task by the content digest of the task's folder, so that neither
side needs to know the other's paths. A trial moves one way, accepted → started → ended, and each move is an event with
a number that counts from 1: who reads events from a number on misses none and sees none twice.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agentic.rollout.trial import TrialPlan, TrialResult

Digest = str
DIGEST_PATTERN = r"^[0-9a-f]{64}$"


class TrialState(StrEnum):
    """How far a trial is."""

    ACCEPTED = "accepted"
    """Written down; waits for a free place."""
    STARTED = "started"
    ENDED = "ended"
    """Its result is there."""


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TrialOrder(TrialPlan):
    """A trial that the server is to run."""

    task: Digest = Field(pattern=DIGEST_PATTERN)
    """Content digest of the task's folder (see `tasks.py`)."""
    nonce: str = Field(min_length=8, max_length=64)
    """Made anew for each wish to run a trial, and the same in each repetition of the request: a repetition is answered
    as the first was, and another wish for a trial id that is taken is refused."""


class TrialEvent(_Wire):
    """One move of a trial, or a sign of life (`number` 0) while nothing moves."""

    number: int
    state: TrialState
    unix_seconds: float
    result: TrialResult | None = None
    """With `ended`."""
    has_folder: bool = False
    """With `ended`: whether the trial left a folder to fetch."""


class TrialStatus(_Wire):
    """Where a trial stands."""

    trial_id: str
    state: TrialState
    events: int
    """The number of its last event."""
    result: TrialResult | None = None
    has_folder: bool = False


class Capacity(_Wire):
    """What the server can take."""

    concurrency: int
    """Trials that run at once."""
    running: int
    queue: int
    """Trials that may wait."""
    queued: int
    state: Literal["serving", "draining"]


class Health(_Wire):
    """Whether the server takes orders."""

    state: Literal["serving", "draining"]


class TaskReceipt(_Wire):
    """The task that the server now has."""

    task: Digest


class Refusal(_Wire):
    """Why a request was refused."""

    code: Literal["busy", "draining", "taken", "unknown_task", "unknown_trial", "no_folder", "bad_task", "not_allowed"]
    message: str
    """What is wrong, which value, what to do; one line."""
