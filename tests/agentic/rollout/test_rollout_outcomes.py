import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.outcomes import (
    MAX_BACKOFF_SECONDS,
    CaptureFacts,
    Outcome,
    TrialFacts,
    backoff_seconds,
    decide,
    should_retry,
)

AGENT_ENDINGS = ("AgentTimeoutError", "NonZeroAgentExitCodeError", None)
EXCEPTIONS = (
    *AGENT_ENDINGS,
    "ContextLengthExceededError",
    "ContextWindowExceededError",
    "SandboxLostError",
    "SandboxExhaustedError",
    "SandboxStartError",
    "ImageMissingError",
    "ModelUnavailableError",
    "NetworkConnectionError",
    "VerifierTimeoutError",
    "RewardFileNotFoundError",
    "RayActorError",
    "SomethingNobodyHasSeenYet",
)

rewards = st.none() | st.dictionaries(
    st.sampled_from(("reward", "tests_seconds", "patch_lines")), st.floats(allow_nan=True, allow_infinity=True)
)
trials = st.builds(
    TrialFacts,
    rewards=rewards,
    exception=st.sampled_from(EXCEPTIONS),
    message=st.text(max_size=20),
    deadline_passed=st.booleans(),
)
captures = st.builds(
    CaptureFacts,
    complete=st.booleans(),
    incomplete_reason=st.none() | st.just("a logprob is missing"),
    overflowed=st.booleans(),
    calls=st.integers(0, 5),
    unanswered=st.integers(0, 2),
)
WHOLE = CaptureFacts(complete=True, calls=3)
UNANSWERED = CaptureFacts(complete=True, calls=3, unanswered=1)


@given(trials, captures)
def test_a_rollout_without_its_tokens_is_never_graded(trial, capture):
    lost = CaptureFacts(False, capture.incomplete_reason, capture.overflowed, capture.calls)
    assert decide(trial, lost).outcome is Outcome.INFRA


@given(trials, captures)
def test_a_grade_needs_a_verdict_or_an_end_that_is_the_agents_own(trial, capture):
    own = ("ContextLengthExceededError", "SandboxExhaustedError")
    if trial.rewards is None and trial.exception not in own:
        assert decide(trial, capture).outcome is Outcome.INFRA


@given(trials, captures)
def test_only_a_verifier_that_says_so_solves(trial, capture):
    solved = decide(trial, capture).outcome is Outcome.SOLVED
    if solved:
        assert trial.rewards is not None
        assert trial.rewards["reward"] >= 1.0
    elif trial.rewards is not None and trial.rewards.get("reward", math.nan) >= 1.0:
        assert decide(trial, capture).outcome is Outcome.INFRA


@given(trials, captures)
def test_an_infra_loss_has_a_reason_of_one_line_and_a_graded_rollout_has_none(trial, capture):
    verdict = decide(trial, capture)
    assert (verdict.infra_reason is None) == verdict.outcome.is_graded
    if verdict.infra_reason is not None:
        assert verdict.infra_reason
        assert "\n" not in verdict.infra_reason


@given(trials, captures)
def test_a_trial_that_its_deadline_cut_is_never_graded(trial, capture):
    cut = TrialFacts(trial.rewards, trial.exception, trial.message, deadline_passed=True)
    assert decide(cut, capture).outcome is Outcome.INFRA


@pytest.mark.parametrize(
    ("trial", "capture", "outcome"),
    [
        (TrialFacts({"reward": 1.0}), WHOLE, Outcome.SOLVED),
        (TrialFacts({"reward": 0.0}), WHOLE, Outcome.FAILED),
        (TrialFacts({"reward": 0.99}), WHOLE, Outcome.FAILED),
        (TrialFacts({"reward": 0.0}, "AgentTimeoutError"), WHOLE, Outcome.AGENT_TIMEOUT),
        (TrialFacts({"reward": 1.0}, "AgentTimeoutError"), WHOLE, Outcome.SOLVED),
        (TrialFacts({"reward": 0.0}, "NonZeroAgentExitCodeError"), WHOLE, Outcome.FAILED),
        (TrialFacts(None, "ContextLengthExceededError"), WHOLE, Outcome.CONTEXT_OVERFLOW),
        (TrialFacts(None, "ContextLengthExceededError"), CaptureFacts(True, overflowed=True), Outcome.CONTEXT_OVERFLOW),
        (TrialFacts({"reward": 0.0}), CaptureFacts(True, overflowed=True, calls=2), Outcome.CONTEXT_OVERFLOW),
        (
            TrialFacts({"reward": 1.0}, "ContextWindowExceededError"),
            CaptureFacts(True, overflowed=True),
            Outcome.SOLVED,
        ),
        (TrialFacts(None, "ContextWindowExceededError"), CaptureFacts(True, overflowed=True), Outcome.INFRA),
        (TrialFacts({"reward": 1.0}), CaptureFacts(True, overflowed=True, calls=2), Outcome.SOLVED),
        (TrialFacts({"reward": 1.0}), CaptureFacts(True, calls=0), Outcome.INFRA),
        (TrialFacts({"score": 1.0}), WHOLE, Outcome.INFRA),
        (TrialFacts({"reward": math.nan}), WHOLE, Outcome.INFRA),
        (TrialFacts(None, "AgentTimeoutError"), WHOLE, Outcome.INFRA),
        (TrialFacts(None, "VerifierTimeoutError"), WHOLE, Outcome.INFRA),
        (TrialFacts(None, "SandboxLostError", "gone"), WHOLE, Outcome.INFRA),
        (TrialFacts(None, "SandboxExhaustedError", "memory"), WHOLE, Outcome.FAILED),
        (TrialFacts(None, "SandboxExhaustedError", "memory"), CaptureFacts(True, calls=0), Outcome.INFRA),
        (TrialFacts(None), WHOLE, Outcome.INFRA),
        (TrialFacts({"reward": 0.0}, "NetworkConnectionError"), WHOLE, Outcome.FAILED),
        (TrialFacts({"reward": 1.0}, "NetworkConnectionError"), WHOLE, Outcome.SOLVED),
        (TrialFacts({"reward": 0.0}, "NetworkConnectionError"), UNANSWERED, Outcome.INFRA),
        (TrialFacts({"reward": 1.0}, "ApiInternalServerError"), UNANSWERED, Outcome.INFRA),
        (TrialFacts({"reward": 0.0}, "NonZeroAgentExitCodeError"), UNANSWERED, Outcome.FAILED),
        (TrialFacts({"reward": 0.0}, "RequestRefusedError"), WHOLE, Outcome.FAILED),
        (TrialFacts({"reward": 0.0}, "RequestRefusedError"), UNANSWERED, Outcome.INFRA),
        (TrialFacts({"reward": 0.0}), UNANSWERED, Outcome.FAILED),
        (
            TrialFacts({"reward": 0.0}, "ApiInternalServerError"),
            CaptureFacts(True, overflowed=True, calls=2, unanswered=1),
            Outcome.CONTEXT_OVERFLOW,
        ),
    ],
)
def test_each_way_to_end_has_its_outcome(trial, capture, outcome):
    assert decide(trial, capture).outcome is outcome


def test_the_reason_of_a_lost_sandbox_names_the_exception_and_its_message():
    assert (
        decide(TrialFacts(None, "SandboxLostError", "gone\naway"), WHOLE).infra_reason == "SandboxLostError: gone away"
    )


@given(st.sampled_from(Outcome), st.integers(1, 10), st.integers(0, 5))
def test_only_infra_losses_are_retried_and_only_so_often(outcome, attempt, retries):
    assert should_retry(outcome, attempt, retries) == (outcome is Outcome.INFRA and attempt <= retries)


@given(st.integers(1, 60), st.floats(0, 100))
def test_waits_between_attempts_grow_up_to_a_bound(attempt, first_seconds):
    wait = backoff_seconds(attempt, first_seconds)
    assert 0 <= wait <= MAX_BACKOFF_SECONDS
    assert backoff_seconds(attempt + 1, first_seconds) >= wait
