"""What counts as "before": the validation before training, if it is whole; rates leave lost rollouts out."""

from pathlib import Path

from agentic.rollout.evaluation import EvaluationTask
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord, append_record
from agentic.training.evaluate import rate, validation_at

A, B = EvaluationTask("a", "held-out"), EvaluationTask("b", "held-out")


def record(step: int, task: EvaluationTask, outcome: Outcome) -> RolloutRecord:
    return RolloutRecord(
        rollout_id=f"{step}-{task.task}",
        phase=Phase.VALIDATION,
        step=step,
        task=task.task,
        split=task.split,
        outcome=outcome,
        reward=None if outcome is Outcome.INFRA else float(outcome is Outcome.SOLVED),
        attempt=1,
        started=0.0,
        seconds=PhaseSeconds(total=1.0),
    )


def test_a_complete_validation_before_training_is_before(tmp_path: Path) -> None:
    for task, outcome in ((A, Outcome.SOLVED), (B, Outcome.FAILED), (B, Outcome.SOLVED)):
        append_record(tmp_path, record(0, task, outcome))
    append_record(tmp_path, record(4, A, Outcome.FAILED))

    before = validation_at(tmp_path, 0, [B, A])

    assert before is not None
    assert [(one.task, one.outcome) for one in before] == [("b", Outcome.SOLVED), ("a", Outcome.SOLVED)]


def test_a_validation_that_lacks_a_task_is_not_before(tmp_path: Path) -> None:
    append_record(tmp_path, record(0, A, Outcome.SOLVED))
    append_record(tmp_path, record(4, B, Outcome.SOLVED))

    assert validation_at(tmp_path, 0, [A, B]) is None


def test_a_lost_rollout_is_on_neither_side_of_a_rate() -> None:
    records = [record(0, A, Outcome.SOLVED), record(0, B, Outcome.INFRA)]

    measured = rate(records, "held-out")

    assert (measured.resolved, measured.graded, measured.infra, measured.rate) == (1, 1, 1, 1.0)
    assert rate(records[1:], "held-out").rate is None
