"""What a trial that is kept leaves for people, beside what Harbor and the verifier leave.

In `trials/<trial-id>/`: `outcome.json` (how it ended, and the cause), `timings.json`, `transcript.md` (all that the
model read and wrote, what trains marked), `trajectory.json` (the same in ATIF). Harbor's own `config.json`,
`result.json`, the agent's `diff.patch` and `verifier/` come from the trial runner, which may be another machine.

Every attempt has its folder, so that a lost one can be looked at next to the one that went well. Which attempts leave
one is `rollout.keep_trials`, by the final verdict, which knows of a lost capture where the trial runner does not.
Written by whoever holds the sealed session and the model's tokenizer. Nothing here decides an outcome, and the
session's key is in none of it.
"""

import logging
from dataclasses import asdict
from pathlib import Path

from agentic import files
from agentic.proxy.export import transcript
from agentic.rollout.atif import Decode, Json, atif
from agentic.rollout.outcomes import is_kept
from agentic.rollout.rollouts import Attempt, RolloutResult
from agentic.rollout.settings import RolloutSettings

_log = logging.getLogger(__name__)

OUTCOME, TIMINGS, TRANSCRIPT, TRAJECTORY = "outcome.json", "timings.json", "transcript.md", "trajectory.json"


def leave_folders(result: RolloutResult, settings: RolloutSettings, decode: Decode) -> list[Path]:
    """The folders of the attempts that are kept, written. A disk that takes nothing costs the folder, which is said,
    and not the rollout."""
    folders = []
    for number, attempt in enumerate(result.attempts, 1):
        if not is_kept(attempt.verdict.outcome, settings.keep_trials):
            continue
        try:
            folders.append(_leave(result, number, settings.agent.kind, decode))
        except OSError as error:
            _log.warning("trial %s leaves no folder: %s", attempt.trial_id, error)
    return folders


def _leave(result: RolloutResult, number: int, agent: str, decode: Decode) -> Path:
    attempt = result.attempts[number - 1]
    folder = Path(result.request.trials_dir) / attempt.trial_id
    files.write_json(folder / OUTCOME, _outcome(result, number, agent))
    files.write_json(folder / TIMINGS, _timings(attempt))
    if attempt.sealed is not None:
        files.write_text(folder / TRANSCRIPT, "".join(transcript(attempt.sealed, decode)))
        if (document := atif(attempt.sealed, agent, decode)) is not None:
            files.write_json(folder / TRAJECTORY, document)
    return folder


def _outcome(result: RolloutResult, number: int, agent: str) -> Json:
    attempt, request = result.attempts[number - 1], result.request
    facts = attempt.trial.facts if attempt.trial else None
    is_last = number == len(result.attempts)
    return {
        "rollout_id": request.rollout_id,
        "trial_id": attempt.trial_id,
        "attempt": number,
        "attempts": len(result.attempts),
        "phase": request.phase,
        "step": request.step,
        "task": request.task,
        "split": request.split,
        "agent": agent,
        "outcome": attempt.verdict.outcome,
        "cause": cause(attempt),
        "reward": result.reward if is_last else None,
        "verifier": dict(facts.rewards) if facts and facts.rewards is not None else None,
        "turns": attempt.trial.turns if attempt.trial else 0,
        "calls": attempt.sealed.calls if attempt.sealed else 0,
        "sampled_tokens": attempt.sealed.sampled_tokens if attempt.sealed else 0,
        "session_digest": attempt.sealed.digest if attempt.sealed else None,
    }


def cause(attempt: Attempt) -> str:
    """Why it ended so, in one line."""
    if attempt.verdict.infra_reason is not None:
        return attempt.verdict.infra_reason
    facts = attempt.trial.facts if attempt.trial else None
    if facts is not None and facts.exception is not None:
        return f"{facts.exception}: {facts.message}" if facts.message else facts.exception
    return "the tests passed" if attempt.verdict.outcome == "solved" else "the tests failed"


def _timings(attempt: Attempt) -> dict[str, float]:
    seconds = asdict(attempt.trial.seconds) if attempt.trial else {}
    seconds["engine"] = attempt.engine_seconds
    return {f"{phase}_seconds": round(value, 6) for phase, value in seconds.items()}
