"""A sealed session in ATIF, the trajectory format of Harbor and others. Pure.

Taken from tokens and not from an agent's own log, so that it is the same for every agent and as exact as training: each
reply of the model is a step with its ids and log-probabilities, and what came between two replies is the observation
of the one before, as the model read it but for special tokens. The last trajectory is the document; further
ones (a history that was edited, a sub-agent) are embedded in it.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from agentic.proxy import SealedSession, Trajectory

SCHEMA_VERSION = "ATIF-v1.8"

type Decode = Callable[[Sequence[int]], str]
type Json = dict[str, Any]


def atif(sealed: SealedSession, agent: str, decode: Decode) -> Json | None:
    """The document; None for a session without a trajectory."""
    documents = [_document(sealed, trajectory, number, agent, decode) for number, trajectory in _numbered(sealed)]
    if not documents:
        return None
    *others, last = documents
    return last | ({"subagent_trajectories": others} if others else {})


def _numbered(sealed: SealedSession) -> list[tuple[int, Trajectory]]:
    return list(enumerate(sealed.trajectories, 1))


def _document(sealed: SealedSession, trajectory: Trajectory, number: int, agent: str, decode: Decode) -> Json:
    steps = _steps(trajectory, decode)
    sampled = sum(version >= 0 for version in trajectory.versions)
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": sealed.session_id,
        "trajectory_id": f"{sealed.session_id}.{number}",
        "agent": {"name": agent, "version": "1"},
        "steps": [{"step_id": place, **step} for place, step in enumerate(steps, 1)],
        "final_metrics": {"total_completion_tokens": sampled, "total_steps": len(steps)},
        "extra": {"session_digest": sealed.digest, "complete": sealed.complete, "calls": sealed.calls},
    }


def _steps(trajectory: Trajectory, decode: Decode) -> list[Json]:
    steps: list[Json] = [{"source": "user", "message": decode(trajectory.prompt_ids)}]
    start = 0
    for is_sampled, run in groupby(version >= 0 for version in trajectory.versions):
        end = start + len(list(run))
        ids = trajectory.response_ids[start:end]
        if is_sampled:
            steps.append(_reply(trajectory, start, end, decode))
        elif steps[-1]["source"] == "agent":
            steps[-1]["observation"] = {"results": [{"content": decode(ids)}]}
        else:
            steps[-1]["message"] += decode(ids)
        start = end
    return steps


def _reply(trajectory: Trajectory, start: int, end: int, decode: Decode) -> Json:
    mask, versions = trajectory.response_mask[start:end], trajectory.versions[start:end]
    return {
        "source": "agent",
        "message": decode(trajectory.response_ids[start:end]),
        "llm_call_count": 1,
        "metrics": {
            "prompt_tokens": len(trajectory.prompt_ids) + start,
            "completion_tokens": end - start,
            "completion_token_ids": trajectory.response_ids[start:end],
            "logprobs": trajectory.response_logprobs[start:end],
        },
        "extra": {"trained_tokens": sum(mask), "policy_versions": sorted(set(versions))},
    }
