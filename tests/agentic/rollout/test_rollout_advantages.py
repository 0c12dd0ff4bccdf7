"""What stock verl makes of our export, on random rollouts: advantages, loss and gradient of GRPO and of PPO.

How many trajectories a rollout was exported as changes nothing, and neither does a rollout that infrastructure lost.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic.proxy import Sampling, SealedSession, Trajectory
from agentic.rollout.export import agent_loop_outputs, training_rows
from agentic.rollout.outcomes import Outcome, TrialFacts, Verdict
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, RolloutResult
from agentic.rollout.trial import TrialResult, TrialSeconds

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("default")]  # verl's imports warn about each other

PROFILE = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MINI_BATCH = 20
"""Rows of an update: more than any drawn step has, three trajectories a rollout included."""

tokens = st.lists(st.integers(1, 23), min_size=1, max_size=4)
turns = st.lists(st.tuples(tokens, tokens), min_size=3, max_size=5)
"""A conversation: what the model is shown, and what it samples, turn by turn."""
rewards = st.sampled_from([0.0, 1.0, 1.1])
cuts = st.tuples(st.integers(0, 2), st.booleans())
"""Into how many further trajectories a rollout is cut, and whether what went before is a later one's prompt or the
part of its response that is not trained again."""
sessions = st.tuples(turns, rewards, cuts)
groups = st.lists(st.lists(sessions, min_size=2, max_size=3), min_size=1, max_size=2)


@pytest.fixture(scope="module")
def step():
    import torch

    torch.set_num_threads(1)  # tensors of a few numbers; more threads only wait for each other
    from verl_step import Step

    def run(outputs, **options):
        return Step(outputs, mini_batch=MINI_BATCH, **options)

    return run


def trajectories(turns, pieces, as_prompt):
    """The conversation as `pieces` trajectories, each of which trains its own turns."""
    length = -(-len(turns) // pieces)
    result = []
    for start in range(0, len(turns), length):
        before = [token for shown, sampled in turns[:start] for token in shown + sampled]
        prompt, response, mask = turns[0][0], [], []
        if as_prompt:
            prompt = before + turns[start][0]
        for number, (shown, sampled) in enumerate(turns[: start + length]):
            if as_prompt and number < start:
                continue
            is_prompt = number == (start if as_prompt else 0)
            response += ([] if is_prompt else shown) + sampled
            mask += ([] if is_prompt else [0] * len(shown)) + [int(number >= start)] * len(sampled)
        result.append(_trajectory(prompt, response, mask))
    return result


def _trajectory(prompt, response, mask):
    versions = [3 if trained else -1 for trained in mask]
    return Trajectory(
        prompt_ids=prompt,
        response_ids=response,
        response_mask=mask,
        response_logprobs=[-0.5 if trained else 0.0 for trained in mask],
        versions=versions,
    )


def outputs_of(sampled, reward, outcome=Outcome.SOLVED):
    """What the agent loop returns for a rollout of these trajectories."""
    request = RolloutRequest(
        rollout_id="uid_0",
        phase=Phase.TRAIN,
        step=1,
        task="t",
        split="train",
        task_dir="t",
        trials_dir="t",
        sampling=Sampling(temperature=1.0, max_tokens=8),
        prompt_tokens=64,
        response_tokens=64,
    )
    sealed = SealedSession(
        session_id="uid_0-1",
        digest="d" * 64,
        complete=True,
        incomplete_reason=None,
        overflowed=False,
        calls=len(sampled),
        sampled_tokens=1,
        undelivered_tokens=0,
        overridden={},
        trajectories=sampled,
    )
    graded = outcome.is_graded
    result = RolloutResult(
        request=request,
        verdict=Verdict(outcome, None if graded else "SandboxLostError"),
        reward=reward if graded else None,
        attempt=1,
        lost=(),
        trial=TrialResult("uid_0-1", TrialFacts({"reward": reward}), turns=1, seconds=TrialSeconds()),
        sealed=sealed,
        started=0.0,
        seconds=0.0,
    )
    return agent_loop_outputs(result, training_rows(result))


def exported(drawn, *, cut, lost=frozenset()):
    """The agent loop's outputs of all sessions of all groups; those in `lost` were lost to infrastructure."""
    outputs = {}
    for group, members in enumerate(drawn):
        for session, (conversation, reward, (more, as_prompt)) in enumerate(members):
            place = (f"g{group}", str(session))
            outcome = Outcome.INFRA if place in lost else Outcome.SOLVED
            pieces = 1 + more if cut else 1
            outputs[place] = outputs_of(trajectories(conversation, pieces, as_prompt), reward, outcome)
    return outputs


def assert_same_update(one, other):
    assert one.loss == pytest.approx(other.loss, rel=1e-9, abs=1e-9)
    assert one.gradient.tolist() == pytest.approx(other.gradient.tolist(), rel=1e-6, abs=1e-9)


def assert_same_advantages(one, other):
    assert one.keys() == other.keys()
    for place, values in one.items():
        assert values == pytest.approx(other[place], rel=1e-5, abs=1e-6), place


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@PROFILE
@given(groups)
def test_a_rollout_counts_the_same_as_one_trajectory_or_as_three(step, estimator, drawn):
    whole, cut = (step(exported(drawn, cut=cut), estimator=estimator) for cut in (False, True))

    assert_same_advantages(cut.advantages(), whole.advantages())
    assert_same_update(cut.actor(), whole.actor())
    if estimator == "gae":
        assert_same_update(cut.value(), whole.value())


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@PROFILE
@given(groups, st.data())
def test_a_lost_rollout_leaves_the_step_of_a_batch_without_it(step, estimator, drawn, data):
    places = [(f"g{group}", str(session)) for group, members in enumerate(drawn) for session in range(len(members))]
    lost = data.draw(st.sets(st.sampled_from(places), min_size=1, max_size=len(places) - 1))
    every = exported(drawn, cut=True)

    with_losses = step(exported(drawn, cut=True, lost=lost), estimator=estimator)
    without = step({place: rows for place, rows in every.items() if place not in lost}, estimator=estimator)

    assert_same_advantages(with_losses.advantages(), without.advantages())
    assert_same_update(with_losses.actor(), without.actor())
    if estimator == "gae":
        assert_same_update(with_losses.value(), without.value())


@PROFILE
@given(groups)
def test_advantages_of_a_group_are_centred_over_rollouts_and_not_over_trajectories(step, drawn):
    advantages = step(exported(drawn, cut=True)).advantages()

    for group in range(len(drawn)):
        firsts = [values[0] for (name, _), values in advantages.items() if name == f"g{group}"]
        assert sum(firsts) == pytest.approx(0.0, abs=1e-4)


@PROFILE
@given(groups)
def test_padding_up_to_the_mini_batch_changes_nothing(step, drawn):
    from verl_step import Step

    outputs = exported(drawn, cut=True)
    rows = sum(map(len, outputs.values()))
    bare, padded = Step(outputs, mini_batch=rows, micro_batch=rows), step(outputs)

    assert_same_update(padded.actor(), bare.actor())


def test_a_rollout_that_losses_left_alone_would_be_pushed_by_its_whole_reward_and_is_left_out(step):
    from verl_step import as_rows

    from agentic.training.groups import lone_rows

    pair = [([([1], [2, 3]), ([4], [5]), ([6], [7])], reward, (2, True)) for reward in (1.0, 0.0)]
    lost = {("g0", "1")}
    left = exported([pair, pair], cut=True, lost=lost)
    keys, _ = as_rows(left)
    lone = {tuple(keys[row].split("_")[:2]) for row in lone_rows(keys, 2)}
    compared = {place: rows for place, rows in left.items() if place not in lone}

    assert step(left).advantages()["g0", "0"] == pytest.approx([1.0] * 4), "what stock verl makes of it"
    assert lone == {("g0", "0")}
    assert_same_update(
        step(compared).actor(), step(exported([pair, pair], cut=True, lost={*lost, ("g0", "0")})).actor()
    )
