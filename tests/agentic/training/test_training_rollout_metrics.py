import pytest

from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord, append_record
from agentic.training.rollout_metrics import RecordReader, rollout_metrics


def record(rollout_id, outcome, turns=2, tokens=10, lost=(), agent=1.0, phase=Phase.TRAIN, reward=None, step=1):
    graded = outcome is not Outcome.INFRA
    return RolloutRecord(
        rollout_id=rollout_id,
        phase=phase,
        step=step,
        task="t",
        split="train",
        outcome=outcome,
        reward=(float(outcome is Outcome.SOLVED) if reward is None else reward) if graded else None,
        attempt=1 + len(lost),
        lost=lost,
        turns=turns,
        sampled_tokens=tokens,
        started=0.0,
        seconds=PhaseSeconds(total=9.0, start=0.5, agent=agent, engine=agent / 2, grade=0.25),
    )


GROUPS = [
    record("a_0", Outcome.SOLVED, turns=4, tokens=40, agent=3.0, reward=1.1),
    record("a_1", Outcome.FAILED, turns=1, tokens=10, lost=("SandboxLostError",)),
    record("b_0", Outcome.AGENT_TIMEOUT, turns=1, tokens=10),
    record("b_1", Outcome.INFRA, turns=9, tokens=99, agent=99.0, lost=("x", "y")),
    record("c_0", Outcome.INFRA),
    record("c_1", Outcome.INFRA),
]


def test_every_outcome_is_counted_and_losses_are_in_no_mean():
    found = rollout_metrics(GROUPS)
    assert {name: found[f"rollouts/sum/{name}"] for name in Outcome} == {
        "solved": 1,
        "failed": 1,
        "agent_timeout": 1,
        "context_overflow": 0,
        "infra": 3,
    }
    assert found["rollouts/resolve_rate"] == 1 / 3
    assert (found["rollouts/reward/mean"], found["rollouts/reward/max"]) == (1.1 / 3, 1.1)
    assert [found[f"rollouts/turns/{what}"] for what in ("min", "mean", "max")] == [1, 2, 4]
    assert (found["rollouts/sampled_tokens/mean"], found["rollouts/sampled_tokens/sum"]) == (20, 60)
    assert found["rollouts/seconds/agent/max"] == 3.0
    assert found["rollouts/seconds/engine/mean"] == found["rollouts/seconds/agent/mean"] / 2
    assert {"rollout", "sandbox", "agent", "engine", "verifier"} == {
        name.split("/")[2] for name in found if "/seconds/" in name
    }
    assert found["rollouts/sum/lost_attempts"] == 1 + (2 + 1) + 1 + 1


def test_groups_with_fewer_than_two_graded_rollouts_are_counted_those_with_none_too(tmp_path):
    reader = RecordReader(tmp_path)
    for each in GROUPS:
        append_record(tmp_path, each)
    records = reader.take(Phase.TRAIN)
    assert rollout_metrics(records, groups=reader.end_groups(1))["rollouts/sum/groups_below_two"] == 2
    assert rollout_metrics(records, groups=reader.end_groups(1))["rollouts/sum/groups_below_two"] == 0, "each once"


def test_a_group_of_a_later_step_is_counted_with_that_step_and_whole(tmp_path):
    reader = RecordReader(tmp_path)
    for each in (*GROUPS[:2], record("d_0", Outcome.SOLVED, step=2), record("e_0", Outcome.INFRA, step=2)):
        append_record(tmp_path, each)
    reader.take(Phase.TRAIN)
    assert reader.end_groups(1) == [2], "d and e have only begun"
    for each in (record("d_1", Outcome.FAILED, step=2), record("e_1", Outcome.SOLVED, step=2)):
        append_record(tmp_path, each)
    reader.take(Phase.TRAIN)
    assert sorted(reader.end_groups(2)) == [1, 2]


def test_a_validation_has_no_groups(tmp_path):
    reader = RecordReader(tmp_path)
    append_record(tmp_path, record("v_0", Outcome.SOLVED, phase=Phase.VALIDATION))
    found = rollout_metrics(reader.take(Phase.VALIDATION), "rollouts/validation")
    assert found["rollouts/validation/sum/rollouts"] == 1
    assert "rollouts/validation/sum/groups_below_two" not in found
    assert reader.end_groups(9) == []


def test_where_nothing_is_graded_nothing_is_averaged_and_where_nothing_ran_nothing_is_said():
    lost = rollout_metrics([record("a_0", Outcome.INFRA)], "rollouts/validation")
    assert "rollouts/validation/resolve_rate" not in lost
    assert lost["rollouts/validation/sum/infra"] == 1
    assert rollout_metrics([]) == {}


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("default")  # verl's imports warn about each other
def test_verl_adds_up_the_batches_of_a_step_as_the_names_say():
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    together = MetricsAggregator()
    for part in (GROUPS[:2], GROUPS[2:]):
        together.add_step_metrics(rollout_metrics(part, groups=[1]), sample_count=len(part))
    found, whole = together.get_aggregated_metrics(), rollout_metrics(GROUPS, groups=[1, 1])
    exact = [name for name in whole if "sum" in name or name.endswith(("/min", "/max"))]
    assert {name: found[name] for name in exact} == {name: whole[name] for name in exact}


def test_each_record_is_told_once_and_those_of_an_earlier_start_are_not(tmp_path):
    append_record(tmp_path, GROUPS[0])
    reader = RecordReader(tmp_path)
    append_record(tmp_path, GROUPS[1])
    append_record(tmp_path, record("v_0", Outcome.SOLVED, phase=Phase.VALIDATION))
    assert [each.rollout_id for each in reader.take(Phase.TRAIN)] == ["a_1"]
    append_record(tmp_path, GROUPS[2])
    assert [each.rollout_id for each in reader.take(Phase.TRAIN)] == ["b_0"]
    assert reader.take(Phase.TRAIN) == []
    assert [each.rollout_id for each in reader.take(Phase.VALIDATION)] == ["v_0"]
