"""A hand-written repair task, and the environment double that the rollout tests run it in."""

import sys

import pytest

from agentic.rollout.trial import EnvironmentSpec

TASK_TOML = """\
schema_version = "1.4"
[task]
name = "repair/calc"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
"""
TEST_SH = """\
#!/bin/sh
if [ "$(cat "$ROOT/testbed/calc.txt")" = "1 + 2" ]; then echo 1; else echo 0; fi > "$ROOT/logs/verifier/reward.txt"
"""


def _write_task(folder, test_sh=TEST_SH):
    """A task that is solved when calc.txt holds `1 + 2`."""
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(TASK_TOML)
    (folder / "instruction.md").write_text("Fix calc.txt.\n")
    (folder / "environment" / "Dockerfile").write_text("FROM base\nWORKDIR /testbed\nCOPY calc.txt .\n")
    (folder / "environment" / "calc.txt").write_text("1 - 2\n")
    (folder / "tests" / "test.sh").write_text(test_sh)
    return folder


@pytest.fixture
def write_task():
    return _write_task


@pytest.fixture
def task_dir(tmp_path):
    return _write_task(tmp_path / "tasks" / "calc")


@pytest.fixture
def environment():
    def make(**kwargs):
        return EnvironmentSpec(import_path="rollout_process_environment:ProcessEnvironment", kwargs=kwargs)

    return make


@pytest.fixture(autouse=True)
def _no_environment_is_left():
    yield
    double = sys.modules.get("rollout_process_environment")
    assert double is None or not double.ProcessEnvironment.live, "a sandbox outlived its test"
