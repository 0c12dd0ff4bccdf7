import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentic.rollout.outcomes import Outcome
from agentic.rollout.grading.reward import score
from agentic.rollout.settings import RewardSettings, RolloutSettings, ShellAgentSettings

BONUSES = RewardSettings(small_patch_bonus=0.1, fast_tests_bonus=0.05)
SMALL_AND_FAST = {"reward": 1.0, "patch_lines": 2.0, "tests_seconds": 0.1}

measured = st.none() | st.dictionaries(st.sampled_from(("reward", "patch_lines", "tests_seconds")), st.floats(-10, 100))


@given(st.sampled_from(Outcome), measured)
def test_validation_is_the_plain_resolve_rate(outcome, rewards):
    reward = score(outcome, rewards, BONUSES, training=False)
    assert reward == (None if outcome is Outcome.INFRA else float(outcome is Outcome.SOLVED))


@given(st.sampled_from(Outcome), measured, st.booleans())
def test_an_infra_loss_has_no_reward_and_an_unsolved_task_no_bonus(outcome, rewards, training):
    reward = score(outcome, rewards, BONUSES, training=training)
    if outcome is Outcome.INFRA:
        assert reward is None
    elif outcome is not Outcome.SOLVED:
        assert reward == 0.0
    else:
        assert reward is not None
        assert 1.0 <= reward <= 1.0 + BONUSES.small_patch_bonus + BONUSES.fast_tests_bonus


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (SMALL_AND_FAST, 1.15),
        ({**SMALL_AND_FAST, "patch_lines": 11.0}, 1.05),
        ({**SMALL_AND_FAST, "tests_seconds": 1.5}, 1.1),
        ({**SMALL_AND_FAST, "patch_lines": 0.0}, 1.05),
        ({"reward": 1.0}, 1.0),
    ],
)
def test_a_bonus_needs_the_verifiers_own_measurement(rewards, expected):
    assert score(Outcome.SOLVED, rewards, BONUSES, training=True) == pytest.approx(expected)


def test_bonuses_are_off_unless_asked_for():
    assert score(Outcome.SOLVED, SMALL_AND_FAST, RewardSettings(), training=True) == 1.0


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
