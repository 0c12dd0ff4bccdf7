"""Runs a step as Argo and the local runner do, and as a person does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    out: str
    err: str


class StepRunner:
    """Starts steps in one workspace."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    def beside(self, name: str) -> "StepRunner":
        """The same for a workspace of its own."""
        (self.workspace / name).mkdir()
        return StepRunner(self.workspace / name)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE), str(ROOT)])
        named = {
            "AGENTIC_WORKSPACE": str(self.workspace),
            "PYTHONPATH": path,
            "AGENTIC_TERMINATION_LOG": self.last_words(),
        }
        return os.environ | named | {"hera__outputs_directory": str(self.workspace / "outputs")}

    def last_words(self) -> str:
        return str(self.workspace / "last-words")

    def by_hand(self, module: str, inputs: Mapping[str, Any]) -> list[str]:
        """The command of a person."""
        path = self.workspace / "inputs.json"
        path.write_text(json.dumps(inputs))
        return [sys.executable, "-m", module, "--inputs", str(path)]

    def by_hera(self, module: str, inputs: Mapping[str, Any]) -> list[str]:
        """The command of a container."""
        path = self.workspace / "parameters.json"
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in inputs.items()}
        path.write_text(json.dumps([{"name": name, "value": value} for name, value in texts.items()]))
        return [sys.executable, "-m", "hera.workflows.runner", "-e", f"{module}:run", str(path)]

    def run(self, command: list[str], preexec: Callable[[], None] | None = None) -> Ended:
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, preexec_fn=preexec, check=False
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


@pytest.fixture
def runner(tmp_path: Path) -> StepRunner:
    return StepRunner(tmp_path)


@pytest.fixture
def here(runner: StepRunner, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace for steps that run inside the test's own process."""
    for name, value in runner.environment().items():
        monkeypatch.setenv(name, value)
    return runner.workspace
