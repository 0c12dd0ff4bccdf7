"""The probe as pytest loads it in a sandbox: what it writes, and who may make it write."""

import ast
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

PROBE = files("agentic.tasks.mutation").joinpath("probe.py").read_text()
TESTS = """
import os
import pytest

def test_fails(): assert 0

def test_passes(): assert not {"PYTEST_PLUGINS", "PROBE_WORD", "PROBE_OUT"} & os.environ.keys()

def test_skips(): pytest.skip("not here")

@pytest.mark.xfail
def test_fails_as_expected(): assert 0

def test_borrows_a_builtin(monkeypatch): monkeypatch.setattr("builtins.len", lambda value, real=len: real(value))
"""


def run_pytest(folder: Path, word_fd: int, out: str = "record.json") -> Path:
    (folder / "agentic_probe.py").write_text(PROBE)
    (folder / "test_it.py").write_text(TESTS)
    given = {"PYTHONPATH": str(folder), "PYTEST_PLUGINS": "agentic_probe", "PROBE_WORD": str(word_fd)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    environment = {**os.environ, **given, "PROBE_OUT": str(folder / out)}
    subprocess.run(command, cwd=folder, env=environment, pass_fds=[word_fd], check=False, capture_output=True)
    return folder / out


def test_a_file_that_cannot_be_imported_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "agentic_probe.py").write_text(PROBE)
    (tmp_path / "test_it.py").write_text("import no_such_library\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PROBE_OUT": str(tmp_path / "record.json")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "agentic_probe"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["messages"] == {"test_it.py": "ModuleNotFoundError: No module named 'no_such_library'"}
    assert record["outcomes"] == {}


def make_word() -> int:
    reading, writing = os.pipe()
    os.write(writing, b"a word")
    os.close(writing)
    return reading


def test_it_is_python_of_old_repositories() -> None:
    ast.parse(PROBE, feature_version=(3, 6))
    assert "from __future__ import annotations" not in PROBE, "which Python 3.6 does not know"


def test_its_lines_are_those_of_pytests_summary(tmp_path: Path) -> None:
    record = json.loads(run_pytest(tmp_path, make_word()).read_text())
    assert record["word"] == "a word"
    assert record["lines"] == [
        "SKIPPED test_it.py::test_skips",
        "XFAIL test_it.py::test_fails_as_expected",
        "PASSED test_it.py::test_passes",
        "PASSED test_it.py::test_borrows_a_builtin",
        "FAILED test_it.py::test_fails",
    ]
    assert record["tampered"] == ["builtins.len"]


def test_a_probe_without_the_word_writes_nothing(tmp_path: Path) -> None:
    word = make_word()
    first = run_pytest(tmp_path, word)
    assert not run_pytest(tmp_path, word, "second.json").exists()
    assert json.loads(first.read_text())["word"] == "a word"
