"""One line per rollout: the record, its file, and what a set of records says.

Written by whoever ran the rollout (verl's agent loop workers, an evaluation), several processes at once into one file:
a record is one `write` of one line to a file opened for appending, which the kernel does not interleave. A line that
does not parse can only be the trace of a machine that died or a disk that filled; it is skipped, and said so.

`token_digests` is what later proves that the tokens trained are the tokens sampled: `token_digest` of the same ids and
mask, computed by the trainer's side on the rows that it really trains, must give the same value.
"""

import hashlib
import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from agentic import json_lines
from agentic.rollout.outcomes import Outcome

_log = logging.getLogger(__name__)


class Phase(StrEnum):
    """What a rollout was for; also the name of its file of records."""

    TRAIN = "train"
    VALIDATION = "validation"
    EVALUATE = "evaluate"


class PhaseSeconds(BaseModel):
    """Where the last attempt's time went, and how long the rollout took with all its attempts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    total: float
    """All attempts and waits."""
    start: float = 0.0
    """Sandbox and agent set up, last attempt."""
    agent: float = 0.0
    """The agent's work, last attempt."""
    engine: float = 0.0
    """Generations for the agent, within its work, last attempt; those at the same time add up."""
    grade: float = 0.0
    """The verifier, last attempt."""


class RolloutRecord(BaseModel):
    """How one rollout went."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_id: str
    """Unique in its run."""
    phase: Phase
    step: int
    """The trainer's step that asked for it; for an evaluation, the checkpoint's step."""
    task: str
    split: str
    outcome: Outcome
    reward: float | None
    """None when the outcome is not graded."""
    attempt: int = Field(ge=1)
    """The attempt that this outcome belongs to; 1 unless earlier ones were lost."""
    lost: tuple[str, ...] = ()
    """Why each earlier attempt was lost."""
    infra_reason: str | None = None
    """Why the last attempt was lost, when it was."""
    turns: int = 0
    calls: int = 0
    """Generations in the session."""
    tool_reward: float = 0.0
    """Sum of what tools gave for calls of this rollout, by loops that have tools."""
    sampled_tokens: int = 0
    session_digest: str | None = None
    """The sealed session's digest; None when no session could be sealed."""
    token_digests: tuple[str, ...] = ()
    """`token_digest` of each trajectory that goes to training, in order."""
    policy_version_min: int | None = None
    policy_version_max: int | None = None
    checkpoint: str | None = None
    """For an evaluation: which policy it measures."""
    started: float
    """Unix seconds."""
    seconds: PhaseSeconds


def token_digest(response_ids: Sequence[int], response_mask: Sequence[int]) -> str:
    """SHA-256 over a response's token ids (u32, little endian) and its loss mask (bytes); both equally long."""
    if len(response_ids) != len(response_mask):
        raise ValueError(f"{len(response_ids)} ids but {len(response_mask)} mask values")
    ids = array("I", response_ids)
    if ids.itemsize != 4:
        raise ValueError(f"this platform's unsigned int has {ids.itemsize} bytes, not 4")
    digest = hashlib.sha256(len(response_ids).to_bytes(8, "little"))
    digest.update(ids.tobytes())
    digest.update(bytes(response_mask))
    return digest.hexdigest()


def records_path(run_dir: Path, phase: Phase) -> Path:
    """A phase's file of records."""
    return run_dir / "rollouts" / f"{phase}.jsonl"


def append_record(run_dir: Path, record: RolloutRecord) -> None:
    """Add one line to the record's phase; safe against other processes that append to the same file."""
    json_lines.append(records_path(run_dir, record.phase), [record.model_dump_json(exclude_defaults=True)])


def read_records(run_dir: Path, phase: Phase) -> list[RolloutRecord]:
    """All records of a phase, in order; none when there is no file. A record of another shape is an error."""
    path = records_path(run_dir, phase)
    found = json_lines.read(path)
    if found.torn:
        _log.warning("%s: skipped %d torn lines", path, found.torn)
    return [RolloutRecord.model_validate(row) for row in found.rows]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a set of records says. Rates and means are over graded rollouts; None when there is none."""

    rollouts: int
    graded: int
    resolved: int
    infra: int
    """Rollouts that stayed ungraded after all retries."""
    lost_attempts: int
    """Attempts that were lost, whether or not a retry then succeeded."""
    resolve_rate: float | None
    mean_reward: float | None
    max_reward: float | None
    mean_turns: float | None


def summarise(records: Iterable[RolloutRecord]) -> Summary:
    """Counts and means of a set of records."""
    every = list(records)
    graded = [record for record in every if record.outcome.is_graded]
    resolved = sum(record.outcome is Outcome.SOLVED for record in graded)
    rewards = [record.reward for record in graded if record.reward is not None]
    infra = len(every) - len(graded)
    return Summary(
        rollouts=len(every),
        graded=len(graded),
        resolved=resolved,
        infra=infra,
        lost_attempts=infra + sum(len(record.lost) for record in every),
        resolve_rate=resolved / len(graded) if graded else None,
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        max_reward=max(rewards, default=None),
        mean_turns=sum(record.turns for record in graded) / len(graded) if graded else None,
    )
