"""Grades a repaired library; copied into its task's `tests/` and run there by `tests/test.sh`.

1. Test files and test configuration are put back as they were, and what was added of that kind is removed, so that
   only the library's own code can differ;
2. the tests run with the probe, which says what became of each;
3. the reward is 1 when every test of FAIL_TO_PASS and PASS_TO_PASS passed, else 0, and is written last.

The library runs in the tests' process, as with every test runner: code that looks for the grader there could forge what
the probe writes. Whoever trains on such tasks grades in a fresh sandbox and looks at what is rewarded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(os.environ.get("TESTS", "/tests"))
LOGS = Path(os.environ.get("LOGS", "/logs/verifier"))
CONFIGURATION = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
STARTUP = ("sitecustomize.py", "usercustomize.py")


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


def run_tests(app: Path, seconds: float, out: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "PROBE_OUT": str(out),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "agentic_probe", "--tb=short"]
    try:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options], cwd=app, env=environment, timeout=seconds, check=False
        )
        outcomes = json.loads(out.read_text(encoding="utf-8"))["outcomes"]
    except (subprocess.TimeoutExpired, OSError, ValueError, KeyError, TypeError):
        return {}
    return outcomes if isinstance(outcomes, dict) else {}


def main() -> None:
    expected = json.loads((TESTS / "expected.json").read_text(encoding="utf-8"))
    app = Path(os.environ.get("APP", expected["app"]))
    restore(app)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_tests(app, expected["seconds"], Path(folder) / "outcomes.json")
    wanted = [*expected["FAIL_TO_PASS"], *expected["PASS_TO_PASS"]]
    missed = [name for name in wanted if outcomes.get(name) != "passed"]
    for name in missed[:20]:
        sys.stdout.write(f"{name}: {outcomes.get(name, 'not run')}\n")
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "reward.json").unlink(missing_ok=True)
    (LOGS / "reward.txt").write_text("0\n" if missed or not wanted else "1\n")


if __name__ == "__main__":
    main()
