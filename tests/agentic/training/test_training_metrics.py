"""Metrics over several attempts, and what is concluded from them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord
from agentic.training import metrics
from agentic.training.metrics import StepMetrics

SPLIT = "repair/same-template"


def line(step: int, **data: float) -> str:
    return json.dumps({"step": step, "data": data}) + "\n"


def record(step: int, task: str, outcome: Outcome, split: str = SPLIT) -> RolloutRecord:
    return RolloutRecord(
        rollout_id=f"{step}-{task}",
        phase=Phase.VALIDATION,
        step=step,
        task=task,
        split=split,
        outcome=outcome,
        reward=None if outcome is Outcome.INFRA else float(outcome is Outcome.SOLVED),
        attempt=1,
        started=0.0,
        seconds=PhaseSeconds(total=1.0),
    )


def test_a_step_trained_again_after_a_resume_counts_once_as_its_last_attempt_had_it(tmp_path: Path) -> None:
    metrics.attempt_file(tmp_path).write_text(line(0, a=0) + line(1, a=1) + line(2, a=2))
    metrics.attempt_file(tmp_path).write_text(line(2, a=20) + line(3, a=30))

    merged = metrics.collect(tmp_path)

    assert [(one.step, one.data["a"]) for one in merged] == [(0, 0), (1, 1), (2, 20), (3, 30)]
    assert metrics.parse((tmp_path / "metrics.jsonl").read_text()) == merged


def test_every_attempt_writes_a_file_of_its_own(tmp_path: Path) -> None:
    first = metrics.attempt_file(tmp_path)
    first.touch()

    assert metrics.attempt_file(tmp_path) != first


@given(cut=st.integers(0, 60))
def test_a_file_cut_at_any_byte_loses_at_most_its_last_line(cut: int) -> None:
    text = line(1, a=1) + line(2, a=2)

    assert [one.step for one in metrics.parse(text[: len(text) - cut])] in ([1, 2], [1], [])


def test_a_malformed_line_in_the_middle_is_named() -> None:
    with pytest.raises(ValueError, match="line 1 of the metrics is malformed"):
        metrics.parse("not json\n" + line(1, a=1))


def test_a_rollout_lost_to_infrastructure_is_in_neither_side_of_the_rate() -> None:
    records = [record(0, "a", Outcome.SOLVED), record(0, "b", Outcome.FAILED), record(0, "c", Outcome.INFRA)]

    assert metrics.validation_curve(records, SPLIT, [0]) == [(0, 0.5)]


def test_a_validation_that_mostly_was_lost_decides_nothing() -> None:
    lost = [record(4, str(number), Outcome.INFRA) for number in range(9)]
    graded = [record(step, "a", Outcome.SOLVED) for step in (4, 12)] + [record(8, "a", Outcome.FAILED)]
    curve = metrics.validation_curve([*lost, *graded], SPLIT, [4, 8, 12])

    assert curve == [(8, 0.0), (12, 1.0)]
    assert metrics.best_step(curve, [4, 8, 12]) == (12, 1.0)
    assert not metrics.has_stalled(curve, patience=1)


def test_a_task_validated_twice_at_a_step_counts_once() -> None:
    records = [record(0, "a", Outcome.FAILED), record(0, "b", Outcome.FAILED), record(0, "a", Outcome.SOLVED)]

    assert metrics.validation_curve(records, SPLIT, [0]) == [(0, 0.5)]


def test_only_validations_that_verl_logged_as_complete_are_on_the_curve() -> None:
    logged = [StepMetrics(step=0, data={f"val-core/{SPLIT}/reward/mean@1": 0.5}), StepMetrics(step=1, data={})]
    records = [record(0, "a", Outcome.SOLVED), record(1, "a", Outcome.SOLVED), record(0, "x", Outcome.FAILED, "other")]

    assert metrics.validation_curve(records, SPLIT, metrics.validated_steps(logged, SPLIT)) == [(0, 1.0)]


def test_the_best_checkpoint_is_a_saved_one_and_the_later_of_equals() -> None:
    curve = [(0, 0.9), (2, 0.5), (4, 0.7), (6, 0.7), (8, 0.8)]

    assert metrics.best_step(curve, saved=[2, 4, 6]) == (6, 0.7)
    assert metrics.best_step(curve, saved=[3]) is None


@pytest.mark.parametrize(
    ("rates", "patience", "stalled"),
    [
        ([0.1, 0.2, 0.3], 1, False),
        ([0.1, 0.3, 0.3], 1, True),
        ([0.1, 0.3, 0.2, 0.4], 2, False),
        ([0.1, 0.3, 0.2, 0.3], 2, True),
        ([0.3, 0.1], None, False),
        ([0.3], 1, False),
    ],
)
def test_training_has_stalled_when_the_last_validations_all_fail_to_beat_the_best_before(
    rates: list[float], patience: int | None, stalled: bool
) -> None:
    assert metrics.has_stalled(list(enumerate(rates)), patience) is stalled


def test_the_time_left_follows_from_the_median_step() -> None:
    logged = [
        StepMetrics(step=n, data={metrics.STEP_SECONDS: seconds}) for n, seconds in ((1, 90.0), (2, 10.0), (3, 12.0))
    ]

    assert metrics.remaining_seconds(logged, 10) == 12.0 * 7
    assert metrics.remaining_seconds([StepMetrics(step=0, data={})], 10) is None
