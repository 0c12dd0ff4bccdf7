import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic.report.loading import load
from agentic.report.records import Tally
from agentic.report.summary import Summary, split_result, summarize, verdict

RunFolder = Callable[..., Path]
STARTED = 1_800_000_000.0


@pytest.fixture
def summary(run_folder: RunFolder) -> Summary:
    return summarize(load(run_folder()))


def test_before_after_and_gain_come_from_the_evaluation(summary: Summary) -> None:
    result = summary.splits["repair/same-template"]
    assert result.before is not None
    assert result.after is not None
    assert (result.before.resolved, result.before.graded, result.after.resolved) == (38, 128, 96)
    assert result.gain == pytest.approx((96 - 38) / 128)
    assert verdict(result).startswith("a gain: +0.453")


def test_each_step_has_the_extremes_and_means_of_rewards_and_turns(summary: Summary) -> None:
    assert [row.step for row in summary.steps] == list(range(1, summary.trained_steps + 1))
    for row in summary.steps:
        assert (row.reward[0], row.reward[2]) == (0.0, 1.0)
        assert (row.turns[0], row.turns[2]) == (2, 10)
        assert 6 <= (row.turns[1] or 0) <= 7


def test_a_small_change_is_not_called_a_gain(summary: Summary) -> None:
    assert verdict(summary.splits["repair/new-template"]).startswith("no clear change")


def test_a_side_that_was_not_evaluated_leaves_no_gain() -> None:
    result = split_result(Tally(resolved=1, graded=2), None)
    assert result.gain is None
    assert "not evaluated" in verdict(result)


def test_a_side_with_nothing_graded_has_no_rate_rather_than_zero() -> None:
    result = split_result(Tally(resolved=0, graded=0, infra=8), Tally(resolved=1, graded=2))
    assert result.before is not None
    assert result.before.rate is None
    assert result.gain is None


def test_lost_rollouts_count_on_neither_side_of_a_rate(summary: Summary) -> None:
    assert {point.step: point.graded for point in summary.training_rate}[2] == 63
    assert {point.graded for point in summary.training_rate if point.step != 2} == {64}


def test_every_lost_attempt_is_counted_with_its_reason(summary: Summary) -> None:
    assert {point.step: point.value for point in summary.infra_losses if point.value} == {2: 3.0}
    assert summary.infra_reasons == {"sandbox lost": 2, "verifier crashed": 1}
    assert summary.outcomes["train"]["infra"] == 1


def test_an_evaluations_rollouts_are_counted_under_their_policy(summary: Summary) -> None:
    assert list(summary.outcomes) == ["train", "validation", "evaluate global_step_12"]


def test_validation_is_the_resolve_rate_of_the_records(summary: Summary) -> None:
    curve = summary.validation["repair/same-template"]
    assert list(summary.validation) == ["repair/same-template", "repair/new-template"]
    assert [point.step for point in curve] == [0, 4, 8, 12]
    assert {point.graded for point in curve} == {128}
    assert all(point.interval is not None and point.interval.low < point.value < point.interval.high for point in curve)


def test_a_validation_counts_each_task_once_and_only_when_it_is_complete(run_folder: RunFolder) -> None:
    run = run_folder()
    path = run / "rollouts/validation.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(record for record in records if record["step"] == 0 and record["outcome"] == "solved")
    again = first | {"outcome": "failed", "reward": 0.0}
    under_way = first | {"step": 13}
    lost = first | {"task": "another", "outcome": "infra", "reward": None}
    whole = summarize(load(run)).validation[first["split"]]

    path.write_text("".join(json.dumps(record) + "\n" for record in (*records, again, under_way, lost)))
    curve = summarize(load(run)).validation[first["split"]]

    assert [point.step for point in curve] == [point.step for point in whole]
    assert {point.graded for point in curve} == {128}
    assert curve[0].value == whole[0].value - 1 / 128


def test_the_parts_of_a_step_add_up_to_it_and_validation_stands_beside(summary: Summary) -> None:
    for step in range(1, 13):
        parts = [
            point.value
            for name, points in summary.step_seconds.items()
            for point in points
            if point.step == step and name != "testing"
        ]
        assert sum(parts) == pytest.approx(11.9)
    assert [point.step for point in summary.step_seconds["testing"]] == [4, 8, 12]


def test_a_step_run_again_later_counts_the_time_it_ran_and_not_the_pause(run_folder: RunFolder) -> None:
    run = run_folder()
    again = {"attempt": 1, "started": STARTED + 90_000, "ended": STARTED + 90_100, "seconds": 100}
    (run / "done/train-ffffffffffff.json").write_text(json.dumps(again))
    (train,) = (phase for phase in summarize(load(run)).phases if phase.step == "train")
    assert (train.runs, train.seconds) == (2, 441.0)


def test_shards_of_a_step_are_one_row(summary: Summary) -> None:
    (build,) = (phase for phase in summary.phases if phase.step == "build-images")
    assert (build.runs, build.seconds) == (2, 5.5)
    assert [phase.step for phase in summary.phases][:2] == ["preflight", "download-data"]
    assert {phase.step: phase.attempts for phase in summary.phases}["train"] == 2


def test_the_run_lasts_from_its_first_step_to_its_last(summary: Summary) -> None:
    assert summary.seconds == pytest.approx(sum((1.2, 9.5, 121.0, 4.5, 6.1, 341.0, 95.0)))


def test_an_empty_run_has_a_summary(tmp_path: Path) -> None:
    summary = summarize(load(tmp_path))
    assert (summary.trained_steps, summary.splits, summary.seconds) == (0, {}, None)
