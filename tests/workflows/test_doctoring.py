"""`submit.py doctor` and `explain` as people type them, where there is no cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def submit(workspace: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "AGENTIC"))}
    environment |= {"AGENTIC_WORKSPACE": str(workspace), "KUBECONFIG": str(workspace / "none")}
    command = [sys.executable, "workflows/submit.py", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False)


@pytest.fixture
def failed_run(tmp_path: Path) -> Path:
    """A workspace with a run whose training found no model."""
    logs = tmp_path / "runs/first/logs"
    logs.mkdir(parents=True)
    (logs / "train.log").write_text("Traceback\nFileNotFoundError: [Errno 2] No such file or directory: '/var/model'\n")
    return tmp_path


def test_doctor_without_a_cluster_says_so_once_and_names_the_run_on_this_machine(tmp_path: Path) -> None:
    ended = submit(tmp_path, "doctor")
    assert ended.returncode == 78
    lines = ended.stdout.splitlines()
    assert lines[0] == "  x  API server: 1 found"
    assert lines[1].startswith("cluster-unreachable: the cluster: no usable credentials")
    assert lines[2].endswith("python3 workflows/submit.py local")
    assert len(lines) == 3


def test_doctor_speaks_json_to_programs(tmp_path: Path) -> None:
    found = json.loads(submit(tmp_path, "doctor", "--json").stdout)
    assert [trouble["name"] for trouble in found["troubles"]] == ["cluster-unreachable"]
    assert found["skipped"]["rights"] == "the API server does not answer"


def test_explain_names_the_trouble_of_a_run_on_this_machine(failed_run: Path) -> None:
    ended = submit(failed_run, "explain", "first")
    assert ended.returncode == 78
    assert ended.stdout.startswith("path-missing: log train: FileNotFoundError")
    assert "-> correct the path" in ended.stdout


def test_explain_of_a_run_that_went_well_finds_nothing(failed_run: Path) -> None:
    (failed_run / "runs/first/logs/train.log").write_text("train: done in 2.0 s\n")
    ended = submit(failed_run, "explain", "first")
    assert (ended.returncode, ended.stdout) == (0, "run first shows no trouble that has a name\n")


def test_explain_of_a_run_that_is_nowhere_is_refused_in_one_line(tmp_path: Path) -> None:
    ended = submit(tmp_path, "explain", "nothing", "--target", "local")
    assert ended.returncode == 78
    assert ended.stderr.startswith("there is no run nothing in")
