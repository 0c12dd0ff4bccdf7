"""`status`, `logs` and `explain` of a run in this workspace, whatever state its files are in."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workflows.local.run import LOCK, holder
from workflows.submit import main

type Command = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that is called `first`."""
    made = tmp_path / "runs/first"
    for name in ("done", "progress", "logs"):
        (made / name).mkdir(parents=True)
    return made


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """What a command that succeeds prints."""
    monkeypatch.setenv("AGENTIC_WORKSPACE", str(tmp_path))

    def run(*arguments: str) -> str:
        code = main(arguments)
        found = capsys.readouterr()
        assert (code, found.err) == (0, "")
        return found.out

    return run


@pytest.mark.parametrize("torn", ["", "{", "[]", "{}", "null", '{"step": "train"}', "\\udc80"])
@pytest.mark.parametrize("place", ["done/train-1.json", "progress/train.json", "settings.json"])
def test_a_file_that_lost_a_part_stands_for_nothing(folder: Path, said: Command, place: str, torn: str) -> None:
    (folder / place).write_bytes(torn.encode("utf-8", "surrogateescape"))
    assert said("status", "first") == "run first is not going on\n"
    assert said("explain", "first") == "run first shows no trouble that has a name\n"


def test_status_tells_what_is_done_what_goes_on_and_who_does_it(folder: Path, said: Command) -> None:
    times = '"attempt": 1, "started": 1, "ended": 3, "seconds": 2.0'
    (folder / "done/build-images-1.json").write_text(
        f'{{"step": "build-images", "inputs": {{}}, "outputs": {{}}, {times}}}'
    )
    for step in ("build-images-7", "train"):
        report = '{"done": 3, "total": 14, "message": "step 3", "updated": 1}'
        (folder / f"progress/{step}.json").write_text(report)
    with (folder / LOCK).open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        assert said("status", "first").splitlines() == [
            "build-images     done in 2.0 s",
            "train            3/14 step 3",
            f"run first is being executed by process {os.getpid()}",
        ]
    assert holder(folder) is None, "who has ended holds nothing, whatever its number is used for now"


def test_logs_of_a_fan_out_come_by_number_and_one_part_is_only_that_part(folder: Path, said: Command) -> None:
    for index in (10, 2, 1):
        (folder / f"logs/build-images-{index}.log").write_text(f"part {index}\n")
    assert said("logs", "first", "build-images") == "part 1\npart 2\npart 10\n"
    assert said("logs", "first", "build-images-1") == "part 1\n"


def test_a_log_is_followed_from_before_it_begins_until_the_run_ends(folder: Path, said: Command) -> None:
    lock = (folder / LOCK).open("w")
    lock.write(str(os.getpid()))
    lock.flush()

    def work() -> None:
        time.sleep(0.3)
        (folder / "logs/train.log").write_text("begins\n")
        time.sleep(1.2)
        with (folder / "logs/train.log").open("a") as log:
            log.write("ends\n")
        lock.close()

    worker = threading.Thread(target=work)
    worker.start()
    assert said("logs", "first", "train", "--follow") == "begins\nends\n"
    worker.join()
