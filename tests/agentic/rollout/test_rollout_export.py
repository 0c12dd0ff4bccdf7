import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.proxy import Sampling, SealedSession, Trajectory
from agentic.rollout.errors import ExportError
from agentic.rollout.export import agent_loop_outputs, training_rows
from agentic.rollout.outcomes import Outcome, TrialFacts, Verdict
from agentic.rollout.records import Phase, token_digest
from agentic.rollout.rollouts import RolloutRequest, RolloutResult, make_record
from agentic.rollout.trial import EnvironmentSpec, TrialResult, TrialSeconds

REQUEST = RolloutRequest(
    rollout_id="uid_0",
    phase=Phase.TRAIN,
    step=3,
    task="calc",
    split="train",
    task_dir="tasks/calc",
    trials_dir="trials",
    environment=EnvironmentSpec(import_path="module:Class"),
    sampling=Sampling(temperature=1.0, max_tokens=8),
    prompt_tokens=8,
    response_tokens=16,
)
TASK, LOOK, SEEN, FIX = [1, 2], [10, 11], [20], [12]
"""Token ids by what they are: the task's text, a first command, its output, a second command."""


def trajectory(**changes):
    values = {
        "prompt_ids": TASK,
        "response_ids": LOOK + SEEN + FIX,
        "response_mask": [1, 1, 0, 1],
        "response_logprobs": [-0.5, -0.25, 0.0, -1.0],
        "versions": [7, 7, -1, 8],
    }
    return Trajectory(**{**values, **changes})


def result(*trajectories, outcome=Outcome.SOLVED, reward=1.0, complete=True, lost=()):
    sealed = SealedSession(
        session_id="uid_0-1",
        digest="d" * 64,
        complete=complete,
        incomplete_reason=None if complete else "a logprob is missing",
        overflowed=False,
        calls=2,
        sampled_tokens=3,
        undelivered_tokens=0,
        overridden={},
        trajectories=list(trajectories),
    )
    return RolloutResult(
        request=REQUEST,
        verdict=Verdict(outcome, None if outcome.is_graded else "SandboxLostError"),
        reward=reward if outcome.is_graded else None,
        attempt=len(lost) + 1,
        lost=lost,
        trial=TrialResult("uid_0-1", TrialFacts({"reward": 1.0}), turns=2, seconds=TrialSeconds(4.0, 1.0, 2.0, 0.5)),
        sealed=sealed,
        started=100.0,
        seconds=5.0,
    )


def test_what_was_sampled_is_what_trains():
    (row,) = training_rows(result(trajectory()))
    assert row.prompt_ids == TASK
    assert row.response_ids == LOOK + SEEN + FIX
    assert row.response_mask == [1, 1, 0, 1]
    assert row.response_logprobs == [-0.5, -0.25, 0.0, -1.0]
    assert (row.version_min, row.version_max) == (7, 8)
    assert row.digest == token_digest(LOOK + SEEN + FIX, [1, 1, 0, 1])


def test_an_infra_loss_has_no_rows():
    assert training_rows(result(trajectory(), outcome=Outcome.INFRA)) == []


def test_a_rollout_that_sampled_nothing_has_no_rows():
    assert training_rows(result(trajectory(response_mask=[0] * 4), outcome=Outcome.CONTEXT_OVERFLOW, reward=0.0)) == []


def test_tokens_after_the_last_trained_one_are_left_off():
    (row,) = training_rows(result(trajectory(response_mask=[1, 1, 0, 0])))
    assert (row.response_ids, row.response_mask) == (LOOK, [1, 1])


@given(st.lists(st.integers(0, 1), min_size=1, max_size=12))
def test_no_trained_token_is_lost_and_the_last_token_is_trained(mask):
    ids, count = list(range(30, 30 + len(mask))), len(mask)
    sampled = trajectory(response_ids=ids, response_mask=mask, response_logprobs=[-0.5] * count, versions=[1] * count)
    rows = training_rows(result(sampled))
    expected = [token for token, trained in zip(ids, mask, strict=True) if trained]
    assert [token for row in rows for token in _trained(row)] == expected
    assert all(row.response_mask[-1] == 1 for row in rows)


def _trained(row):
    return [token for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response_logprobs": [-0.5]}, "unequal lengths"),
        ({"versions": []}, "unequal lengths"),
        ({"response_mask": [1, 1, 0, 2]}, "mask values"),
        ({"response_logprobs": [-0.5, math.nan, 0.0, -1.0]}, "logprob nan"),
        ({"response_logprobs": [0.5, -0.5, 0.0, -1.0]}, "logprob 0.5"),
        ({"prompt_ids": list(range(9))}, "prompt of 9 tokens exceeds the trainer's 8"),
    ],
)
def test_a_session_that_contradicts_itself_is_refused_not_repaired(changes, message):
    with pytest.raises(ExportError, match=message):
        training_rows(result(trajectory(**changes)))


def test_a_graded_session_that_is_incomplete_is_refused():
    with pytest.raises(ExportError, match="graded but incomplete"):
        training_rows(result(trajectory(), complete=False))


def test_a_record_says_what_happened_over_all_attempts():
    outcome = result(trajectory(), lost=("SandboxLostError: gone",))
    record = make_record(outcome, ("abc",))
    assert (record.attempt, record.lost, record.calls, record.turns) == (2, ("SandboxLostError: gone",), 2, 2)
    assert (record.policy_version_min, record.policy_version_max) == (7, 8)
    assert (record.seconds.total, record.seconds.agent, record.token_digests) == (5.0, 2.0, ("abc",))


@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("default")  # verl's imports warn about each other
def test_verls_outputs_carry_rows_reward_and_policy_versions():
    branch = trajectory(response_ids=[*LOOK, 21, *FIX])
    outcome = result(trajectory(), branch)
    rows = training_rows(outcome)
    outputs = agent_loop_outputs(outcome, rows)
    assert [output.response_ids for output in outputs] == [LOOK + SEEN + FIX, [*LOOK, 21, *FIX]]
    assert [output.reward_score for output in outputs] == [1.0, 1.0]
    assert [output.num_turns for output in outputs] == [4, 4]
    for output in outputs:
        assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 8)
        fields = output.as_dict()
        assert fields["rm_scores"].tolist() == [0.0, 0.0, 0.0, 1.0]
        assert fields["rollout_log_probs"].tolist() == [-0.5, -0.25, 0.0, -1.0]
    assert "reward_extra_info" not in outputs[0].extra_fields
    assert outputs[1].extra_fields["reward_extra_info"]["resolved"] == 1.0
    assert "acc" not in outputs[1].extra_fields["reward_extra_info"], "verl counts a sample without acc as a zero"


def test_verl_is_told_nothing_of_an_infra_loss():
    outcome = result(trajectory(), outcome=Outcome.INFRA)
    assert agent_loop_outputs(outcome, training_rows(outcome)) == []
