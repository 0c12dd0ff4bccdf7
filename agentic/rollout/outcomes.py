"""The one place that decides how a rollout ended.

Pure: facts in, verdict out; no clock, no file, no Harbor. `solved`, `failed`, `agent_timeout` and `context_overflow`
are graded; `infra` is not, and never becomes a zero.

Rules, first match wins:
1. capture lost → infra: a grade without the tokens that earned it is worthless for training;
2. cut by the whole trial's deadline → infra: the agent has its own, shorter limit, so something else was slow;
3. an agent's program that ended over an unanswered call → infra, if its session knows of a call that engine or proxy
   left without an answer: the program's own words are the policy's to choose, and alone they change nothing;
4. the verifier's verdict counts: resolved → solved, else by what ended the agent;
5. without a verdict only two ends are graded: an exceeded context of an agent after which Harbor runs no verifier (none
   of those that are named here), and a sandbox that went over its own limits of memory or disk, which is failed: where
   a limit ends a single command, the same agent gets an exit code and its tests fail. No other failure can tell an
   agent's fault from the infrastructure's, so an unknown exception is infra, never a failed task.
A graded rollout in which the model was never asked is infra too: the agent did not take part.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

RESOLVED_KEY = "reward"
"""The verifier's key for the resolve verdict (Harbor's name for the value of `reward.txt`)."""

_OVERFLOWS = frozenset({"ContextLengthExceededError"})
"""After which Harbor runs no verifier. Its ContextWindowExceededError is none of them: the tests decide then, and when
they come to no verdict, something else was lost."""

_TIMEOUTS = frozenset({"AgentTimeoutError"})
_UNANSWERED = frozenset(
    {
        "ApiConnectionClosedError",
        "ApiInternalServerError",
        "ApiOverloadedError",
        "NetworkConnectionError",
        "RequestRefusedError",
    }
)
"""What Harbor makes of the words of a program that ended without an answer of its model, or that says so; and of our
own, what ends an agent whose calls are spent, which may be because it had to ask again."""

_EXHAUSTED = frozenset({"SandboxExhaustedError"})


class Outcome(StrEnum):
    """How a rollout ended."""

    SOLVED = "solved"
    FAILED = "failed"
    AGENT_TIMEOUT = "agent_timeout"
    CONTEXT_OVERFLOW = "context_overflow"
    INFRA = "infra"

    @property
    def is_graded(self) -> bool:
        """Whether the rollout counts: in the group's mean, in the resolve rate, in the gradient."""
        return self is not Outcome.INFRA


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """What is known about a finished trial."""

    rewards: Mapping[str, float] | None = None
    """What the verifier wrote; None: it did not run, or it did not end with a verdict."""
    exception: str | None = None
    """Type name of the first exception that the trial recorded."""
    message: str = ""
    """That exception's message, one line."""
    deadline_passed: bool = False
    """Whether the whole trial's deadline cut it."""


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """What is known about the trial's sealed session."""

    complete: bool
    """Whether every token that was sampled for the session is accounted for."""
    incomplete_reason: str | None = None
    """Why it is not complete."""
    overflowed: bool = False
    """Whether a request was refused because the session's token budget was spent."""
    calls: int = 0
    """Generations that the session holds."""
    unanswered: int = 0
    """Calls that engine or proxy left without an answer; not those that their client gave up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and for `infra` the reason in one line."""

    outcome: Outcome
    infra_reason: str | None = field(default=None)


def decide(trial: TrialFacts, capture: CaptureFacts) -> Verdict:
    """The outcome of a rollout from the facts about its trial and its session."""
    if not capture.complete:
        return _infra(f"capture incomplete: {capture.incomplete_reason or 'no reason given'}")
    if trial.deadline_passed:
        return _infra("the trial's deadline passed outside the agent's time")
    if trial.rewards is None:
        return _without_verdict(trial, capture)
    resolve = trial.rewards.get(RESOLVED_KEY)
    if resolve is None or not math.isfinite(resolve):
        return _infra(f"the verifier wrote no finite {RESOLVED_KEY!r}: {dict(trial.rewards)}")
    if not _took_part(capture):
        return _infra(f"the agent never asked the model{_because(trial)}")
    if trial.exception in _UNANSWERED and capture.unanswered and not capture.overflowed:
        return _infra(f"the model left the agent without an answer: {trial.exception}: {trial.message}")
    return Verdict(_graded(resolve, trial, capture))


def _because(trial: TrialFacts) -> str:
    return f": {trial.exception}: {trial.message}" if trial.exception else ""


def _took_part(capture: CaptureFacts) -> bool:
    return capture.calls > 0 or capture.overflowed


def _without_verdict(trial: TrialFacts, capture: CaptureFacts) -> Verdict:
    if trial.exception in _OVERFLOWS:
        return Verdict(Outcome.CONTEXT_OVERFLOW)
    if trial.exception in _EXHAUSTED and _took_part(capture):
        return Verdict(Outcome.FAILED)
    if trial.exception is None:
        return _infra("the trial ended without a verdict and without an exception")
    return _infra(f"{trial.exception}: {trial.message}" if trial.message else trial.exception)


def _graded(resolve: float, trial: TrialFacts, capture: CaptureFacts) -> Outcome:
    if resolve >= 1.0:
        return Outcome.SOLVED
    if trial.exception in _TIMEOUTS:
        return Outcome.AGENT_TIMEOUT
    if capture.overflowed:
        return Outcome.CONTEXT_OVERFLOW
    return Outcome.FAILED


def _infra(reason: str) -> Verdict:
    return Verdict(Outcome.INFRA, " ".join(reason.split()))


def should_retry(outcome: Outcome, attempt: int, infra_retries: int) -> bool:
    """Whether a rollout whose attempt number `attempt` (from 1) ended so is tried again."""
    return outcome is Outcome.INFRA and attempt <= infra_retries


type Keep = Literal["none", "infra", "failed", "all"]
"""Which trials leave a folder; `failed` includes `infra`."""


def is_kept(outcome: Outcome, keep: Keep) -> bool:
    """Whether a trial that ended so leaves its folder."""
    match keep:
        case "all":
            return True
        case "failed":
            return outcome is not Outcome.SOLVED
        case "infra":
            return outcome is Outcome.INFRA
        case "none":
            return False


MAX_BACKOFF_SECONDS = 10.0
"""A lost sandbox host or a full machine recovers within seconds or not soon; longer waits only idle the batch."""


def backoff_seconds(attempt: int, first_seconds: float) -> float:
    """How long to wait after attempt number `attempt` (from 1) was lost."""
    return float(min(first_seconds * 2 ** (attempt - 1), MAX_BACKOFF_SECONDS))
