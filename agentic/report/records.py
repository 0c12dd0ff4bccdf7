"""What a report reads from a run's folder: one model for each kind of file.

These mirror the contracts of docs/architecture.md from the reader's side: fields that the report has no use for are
ignored, so that a writer may add some, and a missing or mistyped field that it needs is an error.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Outcome = Literal["solved", "failed", "agent_timeout", "context_overflow", "infra"]
OUTCOMES: tuple[Outcome, ...] = ("solved", "failed", "agent_timeout", "context_overflow", "infra")


class Record(BaseModel):
    """Base of what is read: frozen, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class StepMetrics(Record):
    """A line of `metrics.jsonl`."""

    step: int = Field(ge=0)
    data: dict[str, float]
    """Numbers only: verl writes null for NaN, and a report has no use for texts."""

    @field_validator("data", mode="before")
    @classmethod
    def _keep_numbers(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if isinstance(value, int | float)}


class RolloutSeconds(Record):
    """Where a rollout's time went."""

    total: float
    """With all attempts and waits."""
    start: float = 0.0
    agent: float = 0.0
    grade: float = 0.0


class RolloutRecord(Record):
    """A line of `rollouts/{train,validation,evaluate}.jsonl`: how one rollout ended."""

    phase: str
    step: int = Field(ge=0)
    task: str
    split: str
    outcome: Outcome
    lost: tuple[str, ...] = ()
    """Why earlier attempts were lost, one reason each."""
    infra_reason: str | None = None
    """Why the last attempt was lost, when it was."""
    seconds: RolloutSeconds | None = None
    checkpoint: str | None = None
    """Which policy an evaluation measured."""

    @property
    def group(self) -> str:
        """What its outcome is counted under: the phase, and in an evaluation the policy too."""
        return self.phase if self.checkpoint is None else f"{self.phase} {self.checkpoint.rpartition('/')[2]}"

    @property
    def is_graded(self) -> bool:
        """Whether the rollout counts in a resolve rate."""
        return self.outcome != "infra"

    @property
    def losses(self) -> tuple[str, ...]:
        """The reasons of all attempts that infrastructure lost."""
        return self.lost if self.is_graded else (*self.lost, self.infra_reason or "no reason given")


class Message(Record):
    """One message of an example."""

    role: str
    content: str


class Example(Record):
    """A line of `rollouts/examples.jsonl`: a rollout with its text, which few runs keep."""

    phase: str
    step: int = Field(ge=0)
    task: str
    split: str
    outcome: Outcome
    messages: tuple[Message, ...]


class Tally(Record):
    """One policy on one split."""

    resolved: int = Field(ge=0)
    graded: int = Field(ge=0)
    infra: int = Field(0, ge=0)


class BeforeAndAfter(Record):
    """One split of `evaluation.json`; a side that was not evaluated is `None`."""

    before: Tally | None = None
    after: Tally | None = None


class Evaluation(Record):
    """`evaluation.json`."""

    checkpoint: str
    checkpoint_step: int = Field(ge=0)
    seconds: float | None = None
    splits: dict[str, BeforeAndAfter]


class DoneMarker(Record):
    """`done/<step>-<hash>.json`."""

    step: str
    """From the file's name."""
    attempt: int = 1
    started: datetime
    """Unix seconds or ISO 8601."""
    ended: datetime
    seconds: float = Field(ge=0)


class Checkpoint(Record):
    """A folder `checkpoints/global_step_<n>`."""

    step: int
    path: str
    """Relative to the run's folder."""
    size_bytes: int
    is_whole: bool
    """False for what a killed trainer left behind."""


class Run(Record):
    """All that could be read from a run's folder."""

    run_id: str
    settings: dict[str, Any] | None
    markers: tuple[DoneMarker, ...]
    metrics: tuple[StepMetrics, ...]
    rollouts: tuple[RolloutRecord, ...]
    examples: tuple[Example, ...]
    evaluation: Evaluation | None
    checkpoints: tuple[Checkpoint, ...]
    missing: tuple[str, ...]
    """What is not there, one sentence each."""
