import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic.rollout.grading.reward import Measured, needs_reference, score
from agentic.rollout.outcomes import Outcome
from agentic.rollout.settings import RewardSettings, RolloutSettings, ShellAgentSettings

BONUSES = RewardSettings(small_patch_bonus=0.1, fast_tests_bonus=0.05)
SMALL_AND_FAST = Measured(patch_lines=2, tests_seconds=0.1, reference_seconds=0.1)

seconds = st.none() | st.floats(0, 100)
measurements = st.builds(Measured, st.none() | st.integers(0, 40), seconds, seconds)
settings = st.builds(
    RewardSettings,
    small_patch_bonus=st.floats(0, 0.5),
    small_patch_lines=st.integers(1, 30),
    fast_tests_bonus=st.floats(0, 0.5),
    fast_tests_factor=st.floats(0.1, 10),
)


@given(st.sampled_from(Outcome), measurements, settings)
def test_validation_is_the_plain_resolve_rate(outcome, measured, reward):
    expected = None if outcome is Outcome.INFRA else float(outcome is Outcome.SOLVED)
    assert score(outcome, measured, reward, training=False) == expected


@given(st.sampled_from(Outcome), measurements, settings, st.booleans())
def test_an_infra_loss_has_no_reward_and_an_unresolved_task_no_bonus(outcome, measured, reward, training):
    found = score(outcome, measured, reward, training=training)
    if outcome is Outcome.INFRA:
        assert found is None
    elif outcome is not Outcome.SOLVED:
        assert found == 0.0
    else:
        assert found is not None
        assert 1.0 <= found <= 1.0 + (reward.small_patch_bonus + reward.fast_tests_bonus)


@given(measurements, settings, st.integers(0, 40), st.floats(0, 100))
def test_a_smaller_patch_and_faster_tests_never_earn_less(measured, reward, fewer, faster):
    lines, took = measured.patch_lines, measured.tests_seconds
    better = Measured(
        patch_lines=lines if lines is None else max(min(lines, 1), lines - fewer),
        tests_seconds=took if took is None else max(0.0, took - faster),
        reference_seconds=measured.reference_seconds,
    )
    first, second = (score(Outcome.SOLVED, one, reward, training=True) for one in (measured, better))
    assert first is not None
    assert second is not None
    assert second >= first


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (SMALL_AND_FAST, 1.15),
        (Measured(10, 0.1, 0.1), 1.15),
        (Measured(11, 0.1, 0.1), 1.05),
        (Measured(0, 0.1, 0.1), 1.05),
        (Measured(2, 0.11, 0.1), 1.1),
        (Measured(2, 0.1, None), 1.1),
        (Measured(), 1.0),
    ],
)
def test_a_bonus_needs_the_verifiers_own_measurement(measured, expected):
    assert score(Outcome.SOLVED, measured, BONUSES, training=True) == pytest.approx(expected)


def test_bonuses_are_off_unless_asked_for():
    assert score(Outcome.SOLVED, SMALL_AND_FAST, RewardSettings(), training=True) == 1.0


@given(st.sampled_from(Outcome), settings, st.booleans())
def test_the_reference_is_measured_only_where_it_can_change_the_reward(outcome, reward, training):
    slow, fast = Measured(None, 100.0, 0.001), Measured(None, 0.001, 100.0)
    changes = score(outcome, slow, reward, training=training) != score(outcome, fast, reward, training=training)
    assert needs_reference(outcome, reward, training=training) or not changes


def test_a_deadline_that_leaves_the_agent_nothing_is_refused_with_the_numbers():
    with pytest.raises(ValidationError, match="deadline_seconds is 60 but start \\+ grading need 60"):
        RolloutSettings(deadline_seconds=60, start_seconds=30, grading_seconds=30)


def test_the_agent_gets_what_start_and_grading_leave():
    assert RolloutSettings(deadline_seconds=100, start_seconds=10, grading_seconds=30).agent_seconds == 60


def test_agents_are_chosen_by_kind_and_unknown_options_are_refused():
    chosen = RolloutSettings.model_validate({"agent": {"kind": "shell", "max_turns": 7}})
    assert chosen.agent == ShellAgentSettings(max_turns=7)
    assert chosen.max_calls == 7
    with pytest.raises(ValidationError):
        RolloutSettings.model_validate({"agent": {"kind": "shell", "max_truns": 7}})
