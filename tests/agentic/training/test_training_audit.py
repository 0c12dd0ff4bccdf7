"""The audit matches what was trained against what was sampled, step by step."""

import json
from pathlib import Path

from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, PhaseSeconds, RolloutRecord, append_record, token_digest
from agentic.training.audit import audit

TURN, OTHER = token_digest([5, 6, 7], [1, 0, 1]), token_digest([5, 6, 8], [1, 0, 1])


def sampled(run_dir: Path, step: int, *digests: str) -> None:
    append_record(
        run_dir,
        RolloutRecord(
            rollout_id="r",
            phase=Phase.TRAIN,
            step=step,
            task="t",
            split="s",
            outcome=Outcome.SOLVED,
            reward=1.0,
            attempt=1,
            token_digests=digests,
            started=0.0,
            seconds=PhaseSeconds(total=1.0),
        ),
    )


def trained(run_dir: Path, *rows: tuple[int, str]) -> None:
    lines = [json.dumps({"step": step, "row": f"u_0_{n}", "digest": digest}) for n, (step, digest) in enumerate(rows)]
    (run_dir / "trained.jsonl").write_text("\n".join(lines) + "\n")


def test_rows_that_were_all_sampled_in_their_step_hold(tmp_path: Path) -> None:
    sampled(tmp_path, 1, TURN, OTHER)
    sampled(tmp_path, 1, TURN)
    trained(tmp_path, (1, TURN), (1, TURN), (1, OTHER))

    verdict = audit(tmp_path)

    assert verdict.holds
    assert (verdict.steps, verdict.trained, verdict.matched) == (1, 3, 3)


def test_one_token_that_differs_is_found(tmp_path: Path) -> None:
    sampled(tmp_path, 1, TURN)
    trained(tmp_path, (1, OTHER))

    assert not audit(tmp_path).holds


def test_a_row_trained_twice_but_sampled_once_is_found(tmp_path: Path) -> None:
    sampled(tmp_path, 1, TURN)
    trained(tmp_path, (1, TURN), (1, TURN))

    assert audit(tmp_path).matched == 1


def test_a_row_of_another_step_does_not_count(tmp_path: Path) -> None:
    sampled(tmp_path, 1, TURN)
    trained(tmp_path, (2, TURN))

    assert audit(tmp_path).matched == 0
