"""`python -m agentic.tasks check`, with real trials in real sandboxes."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")

ROOT = Path(__file__).parents[3]
CONFIG = '[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = {seconds}\n[environment]\nnetwork_mode = "no-network"\n'
GRADE = "if grep -q right /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"


def write_task(
    folder: Path, *, test: str = GRADE, solve: str = "echo right > /app/answer", base: str = "agentic/base:local"
) -> Path:
    texts = {
        "task.toml": CONFIG.format(seconds=20),
        "instruction.md": "Write right into /app/answer.\n",
        "environment/Dockerfile": f"FROM {base}\nWORKDIR /app\nCOPY answer .\n",
        "environment/answer": "wrong\n",
        "tests/test.sh": f"#!/bin/sh\n{test}\n",
        "solution/solve.sh": f"#!/bin/sh\n{solve}\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def check(*words: str | Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "agentic.tasks", "check", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55)
    return done.returncode, done.stdout, done.stderr


def reports(output: str) -> dict[str, dict[str, Any]]:
    return {report["task"]: report for report in json.loads(output)}


def test_a_sound_task_is_good_and_the_table_says_so(tmp_path: Path) -> None:
    code, output, _ = check(write_task(tmp_path / "sound"))
    assert code == 0
    assert output.splitlines()[1].split() == ["sound", "good", "1", "0"]


def test_each_bad_task_of_a_folder_is_told_what_is_wrong(tmp_path: Path) -> None:
    write_task(tmp_path / "sound")
    write_task(tmp_path / "no-image", base="python:3.12")
    write_task(tmp_path / "useless-solution", solve="exit 3")
    write_task(tmp_path / "solved-already", test="mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")
    write_task(tmp_path / "no-reward", test="test -e /logs/verifier/reward.txt || echo no verdict today")
    (write_task(tmp_path / "no-instruction") / "instruction.md").unlink()
    (tmp_path / "notes").mkdir()
    code, output, _ = check(tmp_path, "--json")
    found = reports(output)
    assert code == 78
    assert {name: report["verdict"] for name, report in found.items()} == {
        "no-image": "bad",
        "no-instruction": "bad",
        "no-reward": "bad",
        "solved-already": "bad",
        "sound": "good",
        "useless-solution": "bad",
    }
    lines = {name: " / ".join(report["problems"]) for name, report in found.items()}
    assert "FROM python:3.12 cannot be pulled here" in lines["no-image"]
    assert "the reference solution earns 0 and must earn 1" in lines["useless-solution"]
    assert "an untouched sandbox earns 1 and must earn 0" in lines["solved-already"]
    assert "the tests wrote no reward" in lines["no-reward"]
    assert "no verdict today" in lines["no-reward"]
    assert lines["no-instruction"].startswith("instruction.md is missing")
    assert found["sound"]["reference"] == 1.0
    assert found["useless-solution"]["empty"] == 0.0


def test_a_solution_larger_than_one_command_arrives_whole(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "large",
        solve='test "$(md5sum < /solution/data)" = "$(cat /solution/sum)" && echo right > /app/answer',
    )
    data = random.Random(0).randbytes(150_000)
    (task / "solution/data").write_bytes(data)
    done = subprocess.run(["md5sum"], input=data, capture_output=True, check=True)
    (task / "solution/sum").write_bytes(done.stdout)
    assert check(task)[0] == 0


def test_trying_none_at_once_is_refused(tmp_path: Path) -> None:
    code, _, error = check(write_task(tmp_path / "sound"), "--parallel", "0")
    assert (code, "'0' is no whole number above 0" in error) == (2, True)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    code, _, error = check(write_task(tmp_path / "a/same"), write_task(tmp_path / "b/same"))
    assert code == 78
    assert "several folders are called same" in error


def test_a_place_without_tasks_is_bad(tmp_path: Path) -> None:
    code, output, _ = check(tmp_path / "nowhere", "--json")
    assert code == 78
    assert "is no folder" in json.loads(output)[0]["problems"][0]


def test_a_task_that_only_names_an_image_cannot_be_judged_here(tmp_path: Path) -> None:
    task = write_task(tmp_path / "named")
    (task / "environment/Dockerfile").unlink()
    with (task / "task.toml").open("a") as config:
        config.write('docker_image = "python:3.12"\n')
    code, output, _ = check(task, "--json")
    assert code == 75
    assert "lies in a registry" in json.loads(output)[0]["problems"][0]
