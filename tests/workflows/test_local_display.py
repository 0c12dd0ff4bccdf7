"""What a person sees: a table on a terminal, plain lines elsewhere, and how going on is said."""

import asyncio
import errno
import json
import shlex
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from workflows import display, submit
from workflows.display import Board, LiveDisplay, PlainDisplay, ProgressFiles, Screen
from workflows.local.scheduler import Node
from workflows.request import Request
from workflows.saying import say_results


def report(run_dir: Path, node: str, message: str, updated: float | None = None) -> None:
    path = run_dir / "progress" / f"{node}.json"
    path.parent.mkdir(exist_ok=True)
    when = time.time() if updated is None else updated
    path.write_text(json.dumps({"done": 3, "total": 14, "message": message, "updated": when}))


def test_plain_lines_are_one_for_each_change_and_few_for_progress(tmp_path: Path) -> None:
    screen = StringIO()
    plain = PlainDisplay(Board(ProgressFiles(tmp_path)), Console(file=screen, width=60))
    node = Node("train", "train", phase="Waiting")
    plain._board.nodes["train"] = node
    plain.changed(node)
    node.phase, node.attempt, node.started = "Running", 1, time.time() - 65
    plain.changed(node)
    message = "step 3/14 · reward 0.41 (max 1.0) · turns 2.3 · infra losses 0 · ETA 5m 10s"
    report(tmp_path, "train", message)
    for _ in range(3):
        plain.tick()
    report(tmp_path, "train", "too soon after the last one")
    plain.tick()
    node.phase, node.ended = "Succeeded", time.time()
    plain.changed(node)
    lines = screen.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["Running", "1:05", "Succeeded"]
    assert lines[1].endswith(f"3/14 {message}")


def test_progress_of_an_earlier_attempt_is_not_shown(tmp_path: Path) -> None:
    board = Board(ProgressFiles(tmp_path))
    report(tmp_path, "train", "old", updated=time.time() - 100)
    assert board.progress(Node("train", "train", phase="Running", started=time.time())) == ""
    assert board.progress(Node("train", "train", phase="Running", started=time.time() - 200)) == "3/14 old"


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_progress_file_that_is_not_whole_is_no_progress(tmp_path: Path, content: str) -> None:
    (tmp_path / "progress").mkdir()
    (tmp_path / "progress" / "train.json").write_text(content)
    assert Board(ProgressFiles(tmp_path)).progress(Node("train", "train", phase="Running", started=0.0)) == ""


def test_a_terminal_gets_a_table_with_state_time_attempt_and_message(tmp_path: Path) -> None:
    screen = StringIO()
    board = Board(ProgressFiles(tmp_path))
    board.nodes["preflight"] = Node("preflight", "preflight", "Succeeded", 1, started=0.0, ended=2.0)
    board.nodes["train"] = Node("train", "train", "Retrying", 2, started=time.time() - 60, message="boom; again in 4 s")
    live = LiveDisplay(board, Console(file=screen, force_terminal=True, width=100))
    live.close()
    last = screen.getvalue().rpartition("STEP")[2]
    for text in (
        "STATE",
        "TIME",
        "TRY",
        "preflight",
        "Succeeded",
        "0:02",
        "train",
        "Retrying",
        "1:00",
        "boom; again in 4 s",
    ):
        assert text in last


def test_the_screen_picks_the_display_by_the_terminal(tmp_path: Path) -> None:
    assert isinstance(Screen(Board(ProgressFiles(tmp_path)), Console(file=StringIO()))._display, PlainDisplay)
    screen = Screen(Board(ProgressFiles(tmp_path)), Console(file=StringIO(), force_terminal=True))
    assert isinstance(screen._display, LiveDisplay)
    screen.close()


class FillingDisk(StringIO):
    """Output redirected to a file on a disk that becomes full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("terminal", [True, False])
async def test_a_run_goes_on_unseen_when_its_output_cannot_be_written(tmp_path: Path, terminal: bool) -> None:
    disk, standard_output = FillingDisk(), sys.stdout
    screen = Screen(Board(ProgressFiles(tmp_path)), Console(file=disk, force_terminal=terminal))
    disk.full = True
    refreshing = asyncio.create_task(screen.refresh())
    for phase in ("Running", "Succeeded"):
        screen.observe(Node("train", "train", phase, 1, started=0.0, ended=1.0))
    screen.close()
    assert not refreshing.done()
    assert sys.stdout is standard_output, "what the table took over is given back"
    refreshing.cancel()


def test_a_progress_file_that_cannot_be_read_is_no_progress(tmp_path: Path) -> None:
    (tmp_path / "progress" / "train.json").mkdir(parents=True)
    assert Board(ProgressFiles(tmp_path)).progress(Node("train", "train", "Running", 1)) == ""


def test_progress_is_followed_often_enough_to_see_a_step_move() -> None:
    assert display.REFRESH_SECONDS <= 1
    assert display.QUIET_SECONDS <= 10


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(
    profile=st.sampled_from([None, "demo", "my profiles/a b.yaml"]),
    start_from=st.sampled_from([None, "train"]),
    settings=st.lists(WORDS.map(lambda text: f"train.overrides={text}"), max_size=3),
    environment=st.dictionaries(
        st.sampled_from(["AGENTIC_WORKSPACE", "AGENTIC__TRAIN__STEPS", "AGENTIC_TARGET", "PATH"]), WORDS
    ),
)
def test_the_command_to_go_on_is_understood_as_what_was_given(
    profile: str | None, start_from: str | None, settings: list[str], environment: dict[str, str]
) -> None:
    request = Request("local", profile, None, start_from, (), tuple(settings))
    words = shlex.split(request.command("first", environment))
    program = words.index("python3")
    kept = {name: value for name, value in environment.items() if name not in {"PATH", "AGENTIC_TARGET"}}
    assert dict(word.split("=", 1) for word in words[:program]) == kept
    assert Path(words[program + 1]).resolve() == Path(submit.__file__)
    options, rest = submit.parse(words[program + 2 :])
    assert (options.verb, options.profile, options.run_id) == ("local", request.profile_name, "first")
    assert (options.start_from, rest) == (start_from, settings)


def test_the_command_to_go_on_runs_in_a_shell_that_has_only_python3(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$AGENTIC_WORKSPACE" "$@"\n')
    python.chmod(0o755)
    overrides = 'train.overrides=["a.b=1", "c=2"]'
    command = Request("local", "demo", None, None, (), (overrides,)).command("first", {"AGENTIC_WORKSPACE": "/a b/c"})
    done = subprocess.run(["/bin/sh", "-c", command], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    workspace, program, *words = done.stdout.splitlines()
    assert workspace == "/a b/c"
    assert Path(program).resolve() == Path(submit.__file__)
    assert words == ["local", "--profile", "demo", "--run-id", "first", overrides]


def test_the_last_lines_are_the_rates_and_the_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    side = {"resolved": 32, "graded": 128, "infra": 0, "rate": 0.25}
    splits = {"repair/same-template": {"before": side, "after": {**side, "resolved": 96, "rate": 0.75}}}
    evaluation = {"checkpoint": "checkpoints/global_step_4/actor/huggingface", "checkpoint_step": 4, "splits": splits}
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation))
    say_results(tmp_path)
    said = capsys.readouterr().out
    assert "repair/same-template     resolve rate 0.250 (32/128) -> 0.750 (96/128)" in said
    assert f"report      {tmp_path}/report.html" in said
    assert f"checkpoint  {tmp_path}/checkpoints/global_step_4/actor/huggingface" in said
