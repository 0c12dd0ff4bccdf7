"""One rollout: a session, a trial, a seal, a verdict; and another try when infrastructure lost it.

Every attempt has its own session and its own sandbox, and neither outlives it: the session is dropped at the proxy as
soon as its sealed content has been fetched, whatever happens in between. A retry shares nothing with the attempt before
it, so tokens of a lost attempt can reach neither a grade nor the trainer. Works over two protocols, so that the proxy
and the trials may be in this process, in Ray actors, or elsewhere.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from agentic.proxy import ProxyError, Sampling, SealedSession, SessionHandle, SessionSpec
from agentic.rollout.engine_time import TimesEngine
from agentic.rollout.errors import ProxyUnavailableError
from agentic.rollout.grading.reference import NO_MODEL, reference_seconds
from agentic.rollout.grading.reward import Measured, needs_reference, score
from agentic.rollout.outcomes import CaptureFacts, Outcome, Verdict, backoff_seconds, decide, should_retry
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord
from agentic.rollout.settings import RolloutSettings
from agentic.rollout.trial import EnvironmentSpec, TrialControl, TrialRequest, TrialResult

_NOT_THE_CLIENTS = frozenset({"engine", "timeout", "proxy", "journal", "restart"})
"""Why the proxy cut a generation (`SealedSession.cut`), where neither its client left nor the rollout ended."""


class ProxyControl(Protocol):
    """The control side of a proxy, in this process or behind an actor handle."""

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """Open a session; an id that is already open is refused."""

    async def seal(self, session_id: str) -> SealedSession:
        """End a session and fetch what it holds. Idempotent."""

    async def drop(self, session_id: str) -> None:
        """Forget a session. Unknown: nothing."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What is to be rolled out, and for whom."""

    rollout_id: str
    """Unique in its run; session and trial ids derive from it."""
    phase: Phase
    step: int
    task: str
    split: str
    task_dir: str
    trials_dir: str
    sampling: Sampling
    prompt_tokens: int
    """The longest prompt that the trainer takes."""
    response_tokens: int
    """The longest response that the trainer takes; the session's budget ends there."""
    checkpoint: str | None = None
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """How it went, over all attempts."""

    request: RolloutRequest
    verdict: Verdict
    reward: float | None
    """None when not graded."""
    attempt: int
    lost: tuple[str, ...]
    """Why each earlier attempt was lost."""
    trial: TrialResult | None
    """The last attempt's; None when its session could not be opened."""
    sealed: SealedSession | None
    """The last attempt's; None when capture was lost."""
    started: float
    seconds: float
    engine_seconds: float = 0.0
    """What the engine worked for the last attempt, as far as the proxy measures it."""
    attempts: "tuple[Attempt, ...]" = ()
    """All of them, in order; the last one is what the fields above are about."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One session and one trial."""

    trial_id: str
    """Also the session's id."""
    verdict: Verdict
    trial: TrialResult | None = None
    """None when its session could not be opened."""
    sealed: SealedSession | None = None
    """None when capture was lost."""
    engine_seconds: float = 0.0


async def run_rollout(
    request: RolloutRequest, settings: RolloutSettings, proxy: ProxyControl, trials: TrialControl
) -> RolloutResult:
    """Roll out once, and again while attempts are lost and retries are left."""
    started, began = time.time(), time.monotonic()
    attempts: list[Attempt] = []
    while True:
        attempt = len(attempts) + 1
        outcome = await _attempt(request, settings, proxy, trials, attempt)
        attempts.append(outcome)
        if not should_retry(outcome.verdict.outcome, attempt, settings.infra_retries):
            break
        await asyncio.sleep(backoff_seconds(attempt, settings.infra_backoff_seconds))
    return RolloutResult(
        request=request,
        verdict=outcome.verdict,
        reward=await _reward(request, settings, trials, outcome),
        attempt=attempt,
        lost=tuple(earlier.verdict.infra_reason or "" for earlier in attempts[:-1]),
        trial=outcome.trial,
        sealed=outcome.sealed,
        started=started,
        seconds=time.monotonic() - began,
        engine_seconds=outcome.engine_seconds,
        attempts=tuple(attempts),
    )


async def _reward(
    request: RolloutRequest, settings: RolloutSettings, trials: TrialControl, attempt: Attempt
) -> float | None:
    training, outcome = request.phase is Phase.TRAIN, attempt.verdict.outcome
    grading = attempt.trial.grading if attempt.trial is not None else None
    measured = Measured(grading.patch_lines, grading.tests_seconds) if grading is not None else Measured()
    if needs_reference(outcome, settings.reward, training=training):
        like = _trial(request, settings, SessionHandle(session_id=attempt.trial_id, base_url=NO_MODEL, api_key="none"))
        seconds = await reference_seconds(like, trials, Path(request.trials_dir).parent / "reference")
        measured = replace(measured, reference_seconds=seconds)
    return score(outcome, measured, settings.reward, training=training)


async def _attempt(
    request: RolloutRequest, settings: RolloutSettings, proxy: ProxyControl, trials: TrialControl, attempt: int
) -> Attempt:
    session_id = f"{request.rollout_id}-{attempt}"
    trial: TrialResult | None = None
    try:
        handle = await proxy.open(_session(request, settings, session_id))
        try:
            trial = await trials.run(_trial(request, settings, handle))
            sealed, engine_seconds = await _finish(proxy, session_id)
        except BaseException:
            await _forget(proxy, session_id)
            raise
    except (ProxyError, ProxyUnavailableError) as error:
        return Attempt(session_id, Verdict(Outcome.INFRA, f"proxy: {type(error).__name__}: {error}"), trial)
    return Attempt(session_id, decide(trial.facts, _capture(sealed)), trial, sealed, engine_seconds)


async def _finish(proxy: ProxyControl, session_id: str) -> tuple[SealedSession, float]:
    """What a session holds, and the engine's seconds for it as far as the proxy measures them. Then it is forgotten."""
    if isinstance(proxy, TimesEngine):
        return await proxy.finish(session_id)
    sealed = await proxy.seal(session_id)
    await _forget(proxy, session_id)
    return sealed, 0.0


async def _forget(proxy: ProxyControl, session_id: str) -> None:
    # A proxy that cannot forget any more has died and forgotten everything.
    with contextlib.suppress(ProxyError, ProxyUnavailableError):
        await proxy.drop(session_id)


def _session(request: RolloutRequest, settings: RolloutSettings, session_id: str) -> SessionSpec:
    return SessionSpec(
        session_id=session_id,
        sampling=request.sampling,
        max_prompt_tokens=request.prompt_tokens,
        max_response_tokens=request.response_tokens,
        max_calls=settings.max_calls,
    )


def _trial(request: RolloutRequest, settings: RolloutSettings, handle: SessionHandle) -> TrialRequest:
    return TrialRequest(
        trial_id=handle.session_id,
        task_dir=request.task_dir,
        trials_dir=request.trials_dir,
        agent=settings.agent,
        base_url=handle.base_url,
        api_key=handle.api_key,
        environment=request.environment,
        deadline_seconds=settings.deadline_seconds,
        start_seconds=settings.start_seconds,
        grading_seconds=settings.grading_seconds,
        keep=settings.keep_trials,
    )


def _capture(sealed: SealedSession) -> CaptureFacts:
    return CaptureFacts(
        complete=sealed.complete,
        incomplete_reason=sealed.incomplete_reason,
        overflowed=sealed.overflowed,
        calls=sealed.calls,
        unanswered=sum(count for word, count in sealed.cut.items() if word in _NOT_THE_CLIENTS),
    )


def make_record(result: RolloutResult, token_digests: tuple[str, ...] = ()) -> RolloutRecord:
    """The record of a rollout; `token_digests` are those of the rows that go to training."""
    request, sealed, trial = result.request, result.sealed, result.trial
    versions = policy_versions(sealed)
    return RolloutRecord(
        rollout_id=request.rollout_id,
        phase=request.phase,
        step=request.step,
        task=request.task,
        split=request.split,
        outcome=result.verdict.outcome,
        reward=result.reward,
        attempt=result.attempt,
        lost=result.lost,
        infra_reason=result.verdict.infra_reason,
        turns=trial.turns if trial else 0,
        calls=sealed.calls if sealed else 0,
        sampled_tokens=sealed.sampled_tokens if sealed else 0,
        session_digest=sealed.digest if sealed else None,
        token_digests=token_digests,
        policy_version_min=min(versions, default=None),
        policy_version_max=max(versions, default=None),
        checkpoint=request.checkpoint,
        started=result.started,
        seconds=PhaseSeconds(
            total=result.seconds,
            start=trial.seconds.start if trial else 0.0,
            agent=trial.seconds.agent if trial else 0.0,
            engine=result.engine_seconds,
            grade=trial.seconds.grade if trial else 0.0,
        ),
    )


def policy_versions(sealed: SealedSession | None) -> set[int]:
    """The policy versions that sampled the session's trained tokens."""
    if sealed is None:
        return set()
    return {
        version
        for trajectory in sealed.trajectories
        for version, mask in zip(trajectory.versions, trajectory.response_mask, strict=True)
        if mask
    }
