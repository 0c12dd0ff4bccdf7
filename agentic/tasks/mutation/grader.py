"""Grades tests by their names; copied into a task's `tests/` and run there by `tests/test.sh`.

1. Test files and test configuration are put back as they were, and what was added of that kind is removed, so that
   only the library's own code can differ. A task from a row restores the files of its test patch by git and applies it;
2. the tests run with the probe, which says what became of each, and by a word from a pipe that it is the probe who says
   so: an early exit leaves no report, and a file that anybody else writes has not the word;
3. what the tests left running is ended, orphans included, which come back to this process;
4. the reward is 1 when every test of FAIL_TO_PASS and PASS_TO_PASS passed, else 0, and is written last.

The library runs in the tests' process, as with every test runner: code that looks for the probe in that process' memory
could still forge what it writes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from agentic.tasks.descendants import end_descendants, guard_process

TESTS = Path(os.environ.get("TESTS", "/tests"))
LOGS = Path(os.environ.get("LOGS", "/logs/verifier"))
CONFIGURATION = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
STARTUP = ("sitecustomize.py", "usercustomize.py")
ENDING_SECONDS = 10.0


def restore(app: Path) -> None:
    for path in sorted(app.rglob("*")):
        if path.name in (*CONFIGURATION, *STARTUP) and (path.is_file() or path.is_symlink()):
            path.unlink()
        elif path.name == "__pycache__" and path.is_dir():
            shutil.rmtree(path)
    suite = TESTS / "suite"
    for source in (path for path in suite.rglob("*") if path.is_file()):
        target = app / source.relative_to(suite)
        if target.is_symlink() or target.is_file():
            target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def apply_patch(app: Path, touched: list[str]) -> bool:
    """Whether the files of the test patch are as at the commit, with the patch on top."""
    for name in touched:
        if subprocess.run(["git", "checkout", "-q", "HEAD", "--", name], cwd=app, check=False).returncode:
            return False
    return subprocess.run(["git", "apply", str(TESTS / "test.patch")], cwd=app, check=False).returncode == 0


def run_tests(app: Path, seconds: float, out: Path, command: list[str]) -> dict[str, str]:
    word = os.urandom(16).hex()
    reading, writing = os.pipe()
    os.write(writing, word.encode())
    os.close(writing)
    environment = {
        **os.environ,
        "PROBE_WORD": str(reading),
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "PROBE_OUT": str(out),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "agentic_probe", "--tb=short"]
    options.append("--continue-on-collection-errors")
    if command:
        environment["PYTEST_PLUGINS"] = "agentic_probe"
    else:
        command = [sys.executable, "-m", "pytest", *options]
    tests = subprocess.Popen(command, cwd=app, env=environment, pass_fds=[reading], start_new_session=True)
    os.close(reading)
    try:
        tests.wait(seconds)
    except subprocess.TimeoutExpired:
        return {}
    finally:
        end_descendants(tests.pid, ENDING_SECONDS)
        tests.poll()
    try:
        report = json.loads(out.read_text(encoding="utf-8"))
        outcomes = report["outcomes"] if report["word"] == word and not report["tampered"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return outcomes if isinstance(outcomes, dict) else {}


def main() -> None:
    guard_process()
    expected = json.loads((TESTS / "expected.json").read_text(encoding="utf-8"))
    app = Path(os.environ.get("APP", expected["app"]))
    outcomes: dict[str, str] = {}
    if "touched" not in expected:
        restore(app)
    if "touched" not in expected or apply_patch(app, expected["touched"]):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "outcomes.json"
            outcomes = run_tests(app, expected["seconds"], out, expected.get("command", []))
    wanted = [*expected["FAIL_TO_PASS"], *expected["PASS_TO_PASS"]]
    missed = [name for name in wanted if outcomes.get(name) != "passed"]
    for name in missed[:20]:
        sys.stdout.write(f"{name}: {outcomes.get(name, 'not run')}\n")
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "reward.json").unlink(missing_ok=True)
    (LOGS / "reward.txt").write_text("0\n" if missed or not wanted else "1\n")


if __name__ == "__main__":
    main()
