"""The contract of a step, on a small one, through Hera's runner and by hand."""

import json
import random
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import small_step

from steps.command import main
from steps.contract import from_environment

SMALL = {"run_id": "r", "count": 3, "fail": "", "pause_seconds": 0.0}


def small(**changes: Any) -> small_step.SmallInput:
    return small_step.SmallInput(**{**SMALL, **changes})


def markers(workspace: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((workspace / "runs/r/done").glob("small-*.json"))]


def test_a_step_gives_the_same_through_hera_and_by_hand(runner: Any, tmp_path: Path) -> None:
    hera = runner.run(runner.by_hera("small_step", SMALL))
    assert hera.code == 0, hera.err
    files = json.loads((tmp_path / "outputs/parameters/files").read_text())
    assert files == [f"runs/r/files/{index}.json" for index in range(3)]
    by_hand = runner.run(runner.by_hand("small_step", SMALL))
    assert json.loads(by_hand.out) == {"summary": "file 2", "files": files}
    assert (tmp_path / "outputs/parameters/summary").read_text() == "file 2"
    assert len(markers(tmp_path)) == 1


def test_the_marker_says_what_went_in_and_came_out_and_when(here: Path) -> None:
    before = time.time()
    small_step.run(small())
    (marker,) = markers(here)
    assert marker["step"] == "small"
    assert marker["inputs"] == {"count": 3, "fail": "", "pause_seconds": 0.0}
    assert marker["outputs"]["files"][0] == "runs/r/files/0.json"
    assert marker["attempt"] == 1
    assert before <= marker["started"] <= marker["ended"] <= time.time()


def test_a_summary_is_the_last_progress_message_also_when_the_step_was_done_before(here: Path) -> None:
    assert small_step.run(small(count=1)).summary == "file 0"
    assert small_step.run(small(count=1)).summary == "file 0"
    assert markers(here)[0]["outputs"]["summary"] == "file 0"


def test_an_input_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_INPUT_COUNT", "7")
    assert small_step.SmallInput.model_validate({"run_id": "r", "count": from_environment("count")}).count == 7
    assert small_step.SmallInput.model_validate({"run_id": "r", "fail": "$AGENTIC_INPUT_COUNT"}).fail[0] == "$"


def test_other_inputs_are_another_marker(here: Path) -> None:
    small_step.run(small())
    small_step.run(small(count=4))
    assert {marker["inputs"]["count"] for marker in markers(here)} == {3, 4}


def test_a_replay_does_nothing_again(here: Path) -> None:
    first = small_step.run(small())
    (here / "runs/r/written").unlink()
    again = small_step.run(small())
    assert again.files == first.files
    assert not (here / "runs/r/written").exists()
    assert "done before" in again.result


def test_a_replay_whose_files_are_gone_does_the_work_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_step.run(small())
    (here / "runs/r/files/1.json").unlink()
    small_step.run(small())
    assert "runs/r/files/1.json is gone" in capsys.readouterr().out
    assert (here / "runs/r/files/1.json").exists()
    assert markers(here)[0]["attempt"] == 2


def test_a_marker_of_another_version_does_not_count(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_step.run(small())
    (path,) = (here / "runs/r/done").glob("small-*.json")
    path.write_text(path.read_text().replace('"files"', '"paths"'))
    assert small_step.run(small()).files == [f"runs/r/files/{index}.json" for index in range(3)]
    assert "marker is of another version" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fail", "code", "line"),
    [
        ("permanent", 78, "small: train.steps is 0: raise it"),
        ("transient", 75, "small: the mirror is away: try again"),
        ("group", 75, "small: one of several: try again"),
        ("missing", 78, "small: missing file at {run}/nowhere: run the step that makes it first"),
        ("port", 75, "small: Address already in use"),
        ("full-device", 75, "small: no space left"),
        ("memory", 75, "small: memory ran out: free some, or give the step more"),
        ("package", 78, "small: the Python package no_such_package is missing: install the project's extra cpu or gpu"),
        ("interrupt", 130, "small: interrupted"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(
    here: Path, capsys: pytest.CaptureFixture[str], fail: str, code: int, line: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        small_step.run(small(fail=fail))
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert said.startswith(line.format(run=here / "runs/r"))
    assert said.count("\n") == 1
    assert (here / "last-words").read_text().strip() in said
    assert said.strip() in (here / "runs/r/logs/small.log").read_text()
    assert markers(here) == []


@pytest.mark.parametrize("way", ["by_hera", "by_hand"])
def test_both_ways_of_running_a_step_end_with_the_same_code(runner: Any, way: str) -> None:
    ended = runner.run(getattr(runner, way)("small_step", {**SMALL, "fail": "transient"}))
    assert (ended.code, ended.err) == (75, "small: the mirror is away: try again\n")


def test_a_bug_is_permanent_and_its_traceback_is_in_the_log(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        small_step.run(small(fail="bug"))
    assert ended.value.code == 78
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "small: unexpected KeyError: 'nothing' (traceback in the log)"
    assert "Traceback" in (here / "runs/r/logs/small.log").read_text()


def test_a_full_disk_leaves_nothing_half_done(runner: Any, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    ended = runner.run(runner.by_hand("small_step", {**SMALL, "fail": "full"}), small_files)
    assert ended.code == 75
    assert "no space left" in ended.err
    assert "free disk space" in ended.err
    assert markers(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"count": 0}, "small: count: input should be greater than or equal to 1, not 0"),
        ({"run_id": "../x"}, "small: run_id: string should match pattern"),
        ({"cuont": 1}, "small: cuont: extra inputs are not permitted, not 1"),
    ],
)
def test_bad_inputs_are_one_line_and_permanent(
    here: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        small_step.SmallInput.model_validate({**SMALL, **changes})
    assert ended.value.code == 78
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1
    assert not (here / "runs").exists()


def test_heras_runner_ends_with_78_on_bad_inputs(runner: Any) -> None:
    ended = runner.run(runner.by_hera("small_step", {**SMALL, "count": 0}))
    assert (ended.code, ended.err.count("\n")) == (78, 1)


def test_a_missing_or_broken_inputs_file_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken.json").write_text("{")
    for name, reason in [("none.json", "No such file"), ("broken.json", "is not JSON")]:
        assert main(small_step.SmallInput, small_step.run, ["--inputs", str(here / name)]) == 78
        said = capsys.readouterr().err
        assert reason in said
        assert said.count("\n") == 1


def test_a_workspace_that_cannot_be_written_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs").write_text("a file where the folder should be")
    with pytest.raises(SystemExit) as ended:
        small_step.run(small())
    assert ended.value.code == 78
    assert str(here / "runs") in capsys.readouterr().err.splitlines()[-1]


def test_two_copies_do_not_run_at_once(runner: Any, tmp_path: Path) -> None:
    slow = {**SMALL, "pause_seconds": 60.0}
    first = runner.start(runner.by_hand("small_step", slow))
    try:
        while not (tmp_path / "runs/r/progress/small.json").exists():
            time.sleep(0.05)
        second = runner.run(runner.by_hand("small_step", slow))
        assert second.code == 75
        assert second.err == "small: another process is running small for this run: wait for it\n"
    finally:
        first.kill()
        first.wait()


def test_being_told_to_end_is_exit_code_143(runner: Any, tmp_path: Path) -> None:
    process = runner.start(runner.by_hand("small_step", {**SMALL, "pause_seconds": 60.0}))
    while not (tmp_path / "runs/r/progress/small.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
    assert markers(tmp_path) == []


def test_killed_at_any_moment_and_run_again_it_ends_the_same(runner: Any, tmp_path: Path) -> None:
    inputs = {**SMALL, "count": 5, "pause_seconds": 0.05}
    moment = random.Random(7)
    for way in ["by_hera", "by_hand", "by_hera"]:
        process = runner.start(getattr(runner, way)("small_step", inputs))
        try:
            process.wait(moment.uniform(0.7, 1.4))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for path in (tmp_path / "runs/r").rglob("*.json"):
            json.loads(path.read_text())
    ended = runner.run(runner.by_hera("small_step", inputs))
    assert ended.code == 0, ended.err
    assert json.loads((tmp_path / "outputs/parameters/files").read_text()) == [
        f"runs/r/files/{index}.json" for index in range(5)
    ]
    written = (tmp_path / "runs/r/written").read_text().split()
    # A kill between the journal line and the file repeats that one file, and no other.
    assert set(written) == {"0", "1", "2", "3", "4"}
    assert len(written) <= 5 + 3
    assert len(markers(tmp_path)) == 1


def test_progress_is_for_the_display_and_for_argo(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(here / "argo"))
    small_step.run(small())
    progress = json.loads((here / "runs/r/progress/small.json").read_text())
    assert (progress["done"], progress["total"], progress["message"]) == (3, 3, "file 2")
    assert (here / "argo").read_text() == "3/3\n"


def test_help_shows_the_inputs_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(small_step.SmallInput, small_step.run, ["--help"])
    said = capsys.readouterr().out
    assert "Files to write." in said
    assert '{"run_id": "try", "count": 2}' in said
