"""A sealed session → the rows that verl trains on.

What was sampled is what trains: ids, mask and logprobs pass through unchanged and are checked, not repaired. Tokens
after the last trained one are left off: nothing is conditioned on them, and PPO's estimator would lose a reward that
lies on a masked token. The order of rows matters to verl: the last one stands for its session in GRPO's statistics and
carries the reward's details.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentic.proxy import SealedSession, Trajectory
from agentic.rollout.errors import ExportError
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import token_digest
from agentic.rollout.rollouts import RolloutResult
from agentic.rollout.trial import TrialResult

if TYPE_CHECKING:
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One trajectory as the trainer gets it."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]
    version_min: int
    version_max: int

    @property
    def digest(self) -> str:
        """See `records.token_digest`."""
        return token_digest(self.response_ids, self.response_mask)


def training_rows(result: RolloutResult) -> list[TrainingRow]:
    """The rows of a graded rollout; none for one that is not graded or that sampled nothing."""
    sealed = result.sealed
    if sealed is None or not result.verdict.outcome.is_graded:
        return []
    if not sealed.complete:
        raise ExportError(f"session {sealed.session_id!r} is graded but incomplete: {sealed.incomplete_reason}")
    request = result.request
    rows = (_row(sealed, trajectory) for trajectory in sealed.trajectories)
    trained = [row for row in rows if row is not None]
    for row in trained:
        _check_budget(sealed, "prompt", len(row.prompt_ids), request.prompt_tokens)
        _check_budget(sealed, "response", len(row.response_ids), request.response_tokens)
    return trained


def _row(sealed: SealedSession, trajectory: Trajectory) -> TrainingRow | None:
    ids, mask = list(trajectory.response_ids), list(trajectory.response_mask)
    logprobs, versions = list(trajectory.response_logprobs), list(trajectory.versions)
    lengths = {"ids": len(ids), "mask": len(mask), "logprobs": len(logprobs), "versions": len(versions)}
    if len(set(lengths.values())) != 1:
        raise ExportError(f"session {sealed.session_id!r} holds a trajectory of unequal lengths: {lengths}")
    if not set(mask) <= {0, 1}:
        raise ExportError(f"session {sealed.session_id!r} holds mask values other than 0 and 1: {sorted(set(mask))}")
    if 1 not in mask:
        return None
    end = len(mask) - mask[::-1].index(1)
    trained = [index for index in range(end) if mask[index]]
    if bad := [index for index in trained if not math.isfinite(logprobs[index]) or logprobs[index] > 0.0]:
        raise ExportError(
            f"session {sealed.session_id!r}: token {bad[0]} of a response has logprob {logprobs[bad[0]]!r}; "
            "a sampled token's is finite and at most 0"
        )
    return TrainingRow(
        prompt_ids=list(trajectory.prompt_ids),
        response_ids=ids[:end],
        response_mask=mask[:end],
        response_logprobs=[logprobs[index] if mask[index] else 0.0 for index in range(end)],
        version_min=min(versions[index] for index in trained),
        version_max=max(versions[index] for index in trained),
    )


def _check_budget(sealed: SealedSession, part: str, length: int, limit: int) -> None:
    if length > limit:
        raise ExportError(
            f"session {sealed.session_id!r}: a {part} of {length} tokens exceeds the trainer's {limit}: "
            "the session's budget must end first"
        )


def agent_loop_outputs(result: RolloutResult, rows: list[TrainingRow]) -> list["AgentLoopOutput"]:
    """verl's form of the rows; an empty list tells verl that this sample has no trajectory.

    The details are named `resolved`, never `acc`: verl counts a sample that is missing from `acc` as a zero, which an
    infra loss is not.
    """
    trial = result.trial
    if not rows or trial is None:
        return []
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    metrics = AgentLoopMetrics(generate_sequences=trial.seconds.agent, compute_score=trial.seconds.grade)
    outputs = [
        AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.response_mask,
            response_logprobs=row.response_logprobs,
            reward_score=result.reward,
            num_turns=2 * trial.turns,
            metrics=metrics,
            extra_fields={"min_global_steps": row.version_min, "max_global_steps": row.version_max},
        )
        for row in rows
    ]
    outputs[-1].extra_fields["reward_extra_info"] = _details(result, trial)
    return outputs


def _details(result: RolloutResult, trial: TrialResult) -> dict[str, float]:
    """What verl logs of a validation as `val-aux/<split>/<name>/mean@<n>`, over the graded rollouts."""
    outcome, sealed = result.verdict.outcome, result.sealed
    return {
        "resolved": float(outcome is Outcome.SOLVED),
        "agent_timeout": float(outcome is Outcome.AGENT_TIMEOUT),
        "context_overflow": float(outcome is Outcome.CONTEXT_OVERFLOW),
        "turns": float(trial.turns),
        "sampled_tokens": float(sealed.sampled_tokens if sealed else 0),
        "lost_attempts": float(len(result.lost)),
        "start_seconds": trial.seconds.start,
        "agent_seconds": trial.seconds.agent,
        "engine_seconds": result.engine_seconds,
        "grading_seconds": trial.seconds.grade,
    }
