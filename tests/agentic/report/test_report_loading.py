import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic.errors import PermanentError
from agentic.report.errors import MalformedFile
from agentic.report.loading import load

RunFolder = Callable[..., Path]

PARTS = {
    "settings.json": "settings",
    "metrics.jsonl": "metrics",
    "evaluation.json": "evaluation",
    "rollouts/train.jsonl": "rollouts of train",
    "rollouts/validation.jsonl": "rollouts of validation",
    "rollouts/evaluate.jsonl": "rollouts of evaluate",
}


def test_a_finished_run_misses_nothing(run_folder: RunFolder) -> None:
    assert load(run_folder()).missing == ()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_not_there_is_named(run_folder: RunFolder, name: str) -> None:
    run = run_folder()
    (run / name).unlink()
    (sentence,) = load(run).missing
    assert PARTS[name] in sentence


def test_an_empty_folder_is_a_run_of_which_everything_is_missing(tmp_path: Path) -> None:
    run = load(tmp_path)
    assert len(run.missing) == len(PARTS) + 2  # and markers, and checkpoints
    assert run.metrics == run.rollouts == run.checkpoints == ()


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="is no folder"):
        load(tmp_path / "runs" / "typo")


@pytest.mark.parametrize("name", [name for name in PARTS if name.endswith("l")])
@pytest.mark.parametrize("line", ["[]", '{"step": "first"}'])
def test_a_malformed_line_is_refused_by_file_and_line(run_folder: RunFolder, name: str, line: str) -> None:
    path = run_folder() / name
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(2, line.encode() + b"\n")
    path.write_bytes(b"".join(lines))
    with pytest.raises(MalformedFile) as refused:
        load(path.parents[1] if "/" in name else path.parent)
    assert f"{path}:3:" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", "[1]"),
        ("settings.json", "{"),
        ("evaluation.json", '{"checkpoint": "x"}'),
        ("evaluation.json", '{"checkpoint": "x", "checkpoint_step": -1, "splits": {}}'),
        ("done/train-0000000000000000.json", '{"seconds": 1}'),
        ("done/train-0000000000000000.json", "3"),
        ("checkpoints/latest_checkpointed_iteration.txt", "twelve"),
    ],
)
def test_a_malformed_file_is_refused_by_name(run_folder: RunFolder, name: str, content: str) -> None:
    run = run_folder()
    (run / name).write_text(content)
    with pytest.raises(MalformedFile, match=Path(name).name):
        load(run)


def test_an_outcome_that_does_not_exist_is_refused(run_folder: RunFolder) -> None:
    path = run_folder() / "rollouts/train.jsonl"
    path.write_text(path.read_text().replace('"infra"', '"lucky"'))
    with pytest.raises(MalformedFile, match=r"train.jsonl:71: outcome"):
        load(path.parents[1])


def test_a_last_line_that_a_killed_writer_cut_is_left_out_and_said(run_folder: RunFolder) -> None:
    path = run_folder() / "metrics.jsonl"
    whole = load(path.parent).metrics
    path.write_bytes(path.read_bytes()[:-20])
    run = load(path.parent)
    assert run.metrics == whole[:-1]
    assert "last line of metrics.jsonl is cut" in run.missing[0]


@pytest.mark.parametrize("name", [name for name in PARTS if name.endswith("l")])
@pytest.mark.parametrize("kept_bytes", [1, 20, -3])
def test_a_record_torn_in_the_middle_is_left_out_counted_and_said(
    run_folder: RunFolder, name: str, kept_bytes: int
) -> None:
    run = run_folder()
    whole = load(run)
    path = run / name
    lines = path.read_bytes().splitlines(keepends=True)
    torn = lines[1][:kept_bytes] + lines[2]  # The disk was full, and then it was not.
    path.write_bytes(b"".join([lines[0], torn, *lines[3:]]))
    left = load(run)
    assert f"1 of {len(lines) - 1} lines of {path.name} (line 2) are torn" in left.missing[0]
    counts = [len(whole.rollouts) - len(left.rollouts), len(whole.metrics) - len(left.metrics)]
    assert sorted(counts) == [0, 2]


def test_bytes_that_are_no_text_are_a_torn_line(run_folder: RunFolder) -> None:
    path = run_folder() / "metrics.jsonl"
    path.write_bytes(b"\x80\n" * 7 + path.read_bytes())
    assert "(line 1, 2, 3, 4, 5, ...) are torn" in load(path.parent).missing[0]


def test_a_step_logged_again_counts_as_it_was_logged_last(run_folder: RunFolder) -> None:
    path = run_folder() / "metrics.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"step": 2, "data": {"critic/score/mean": 0.125}}) + "\n")
    metrics = load(path.parent).metrics
    assert [line.step for line in metrics] == sorted({line.step for line in metrics})
    assert metrics[2].data == {"critic/score/mean": 0.125}


def test_fields_that_a_writer_adds_are_ignored(run_folder: RunFolder) -> None:
    path = run_folder() / "rollouts/evaluate.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps(record | {"from_the_future": [1]}) + "\n")
    assert load(path.parents[1]).missing == ()


def test_a_checkpoint_beyond_the_tracker_is_not_whole(run_folder: RunFolder) -> None:
    run = run_folder()
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text("8")
    assert {checkpoint.step: checkpoint.is_whole for checkpoint in load(run).checkpoints} == {
        4: True,
        8: True,
        12: False,
    }
