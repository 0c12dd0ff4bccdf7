"""The progress line says what has been logged and how far the next step is."""

import json
from pathlib import Path

from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord, append_record, records_path
from agentic.training.jobs import HeldOut
from agentic.training.metrics import STEP_SECONDS, StepMetrics
from agentic.training.progress import Watch, format_seconds

HELD_OUT = [HeldOut("same", ("a", "b"), "repair/same", Path("same.parquet"))]
FIRST = StepMetrics(step=0, data={"val-core/repair/same/reward/mean@1": 0.5})


def rollout(run_dir: Path, phase: Phase, step: int, task: str, outcome: Outcome = Outcome.SOLVED) -> None:
    append_record(
        run_dir,
        RolloutRecord(
            rollout_id=f"{phase}-{step}-{task}",
            phase=phase,
            step=step,
            task=task,
            split="train" if phase is Phase.TRAIN else "same",
            outcome=outcome,
            reward=None if outcome is Outcome.INFRA else float(outcome is Outcome.SOLVED),
            attempt=1,
            turns=3,
            started=0.0,
            seconds=PhaseSeconds(total=1.0),
        ),
    )


def watch(run_dir: Path) -> Watch:
    return Watch(run_dir, HELD_OUT, total_steps=3, rollouts_per_step=4)


def test_before_anything_is_recorded_the_trainer_is_starting(tmp_path: Path) -> None:
    assert watch(tmp_path).look([]) == (0, "starting verl, vLLM and the agent loop")


def test_the_first_validation_is_followed_task_by_task(tmp_path: Path) -> None:
    watching = watch(tmp_path)
    rollout(tmp_path, Phase.VALIDATION, 0, "a")
    assert watching.look([]).message == "validating 1/2"

    rollout(tmp_path, Phase.VALIDATION, 0, "b", Outcome.FAILED)
    assert watching.look([FIRST]) == (0, "step 0/3 · resolve rate 0.50")


def test_a_step_under_way_stands_behind_the_last_finished_one(tmp_path: Path) -> None:
    watching = watch(tmp_path)
    for task, outcome in (("a", Outcome.SOLVED), ("b", Outcome.FAILED), ("c", Outcome.INFRA), ("d", Outcome.SOLVED)):
        rollout(tmp_path, Phase.TRAIN, 1, task, outcome)
    rollout(tmp_path, Phase.TRAIN, 2, "a")

    now = watching.look([FIRST, StepMetrics(step=1, data={STEP_SECONDS: 40.0})])

    assert now == (
        1,
        "step 1/3 · reward 0.67 (max 1.00) · turns 3.00 · infra losses 1 · ETA 1m 20s · 1/4 rollouts",
    )


def test_a_line_that_is_still_being_written_is_read_at_the_next_look(tmp_path: Path) -> None:
    watching = watch(tmp_path)
    path = records_path(tmp_path, Phase.TRAIN)
    path.parent.mkdir(parents=True)
    line = json.dumps({"step": 1}).encode() + b"\n"
    path.write_bytes(line[:5])
    assert "rollouts" not in watching.look([FIRST]).message

    path.write_bytes(line)
    assert watching.look([FIRST]).message.endswith("1/4 rollouts")


def test_durations_read_as_people_say_them() -> None:
    assert [format_seconds(value) for value in (9, 75, 3723)] == ["9s", "1m 15s", "1h 02m"]
