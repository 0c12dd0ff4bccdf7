import json
import logging
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import (
    Phase,
    PhaseSeconds,
    RolloutRecord,
    append_record,
    read_records,
    records_path,
    summarise,
    token_digest,
)


def record(name="r", **changes):
    values = {
        "rollout_id": name,
        "phase": Phase.TRAIN,
        "step": 1,
        "task": "calc",
        "split": "train",
        "outcome": Outcome.SOLVED,
        "reward": 1.0,
        "attempt": 1,
        "turns": 3,
        "started": 1.5,
        "seconds": PhaseSeconds(total=2.0),
    }
    return RolloutRecord(**{**values, **changes})


def test_a_record_survives_the_file(tmp_path):
    written = [record("a", lost=("SandboxLostError: gone",), attempt=2), record("b", token_digests=("ab", "cd"))]
    for one in written:
        append_record(tmp_path, one)
    assert read_records(tmp_path, Phase.TRAIN) == written
    assert read_records(tmp_path, Phase.VALIDATION) == []


def test_phases_have_files_of_their_own(tmp_path):
    append_record(tmp_path, record(phase=Phase.EVALUATE, checkpoint="base"))
    assert records_path(tmp_path, Phase.EVALUATE) == tmp_path / "rollouts" / "evaluate.jsonl"
    assert [one.checkpoint for one in read_records(tmp_path, Phase.EVALUATE)] == ["base"]


def _append_many(run_dir, name):
    for index in range(200):
        append_record(run_dir, record(f"{name}-{index}", infra_reason="x" * 500))


def test_processes_that_append_at_once_do_not_tear_each_others_lines(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [one.rollout_id for one in read_records(tmp_path, Phase.TRAIN)]
    assert sorted(found) == sorted(f"{name}-{index}" for name in "abc" for index in range(200))


def test_a_torn_line_is_skipped_and_said(tmp_path, caplog):
    append_record(tmp_path, record("a"))
    with records_path(tmp_path, Phase.TRAIN).open("a") as file:
        file.write('{"rollout_id": "tor\n')
    append_record(tmp_path, record("b"))
    with caplog.at_level(logging.WARNING):
        assert [one.rollout_id for one in read_records(tmp_path, Phase.TRAIN)] == ["a", "b"]
    assert "skipped 1 torn" in caplog.text


def test_a_whole_line_of_another_shape_is_an_error(tmp_path):
    append_record(tmp_path, record("a"))
    with records_path(tmp_path, Phase.TRAIN).open("a") as file:
        file.write(json.dumps({"rollout_id": "b", "surprise": 1}) + "\n")
    with pytest.raises(ValueError, match="surprise"):
        read_records(tmp_path, Phase.TRAIN)


def test_a_full_disk_is_said_with_the_path(tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "rollouts").mkdir(parents=True)
    records_path(run_dir, Phase.TRAIN).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        append_record(run_dir, record())


def test_a_summary_leaves_infra_losses_out_of_every_mean():
    summary = summarise(
        [
            record("a", reward=1.1, turns=2),
            record("b", outcome=Outcome.FAILED, reward=0.0, turns=4, lost=("x",), attempt=2),
            record("c", outcome=Outcome.INFRA, reward=None, turns=0, lost=("x", "y"), attempt=3, infra_reason="z"),
        ]
    )
    assert (summary.rollouts, summary.graded, summary.resolved, summary.infra) == (3, 2, 1, 1)
    assert summary.lost_attempts == 4
    assert (summary.resolve_rate, summary.mean_turns) == (0.5, 3.0)
    assert summary.mean_reward == pytest.approx(0.55)
    assert summary.max_reward == pytest.approx(1.1)


def test_a_summary_of_losses_alone_has_no_rate_instead_of_a_zero():
    summary = summarise([record(outcome=Outcome.INFRA, reward=None)])
    assert (summary.resolve_rate, summary.mean_reward, summary.max_reward, summary.mean_turns) == (None,) * 4


responses = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 1)), max_size=30)


@given(responses, responses)
def test_digests_agree_exactly_when_ids_and_masks_do(first, second):
    def digest(response):
        return token_digest([token for token, _ in response], [mask for _, mask in response])

    assert (digest(first) == digest(second)) == (first == second)


def test_a_digest_of_unequal_lengths_is_refused():
    with pytest.raises(ValueError, match="2 ids but 1 mask"):
        token_digest([1, 2], [1])
