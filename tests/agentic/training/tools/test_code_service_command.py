"""The code sandbox as a command: it says where it listens, serves, ends when told, and refuses in one line."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "agentic.training.tools.code_service"]


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    words = [*COMMAND, "--port", "0", "--store", str(tmp_path), "--limits", '{"libraries": [], "run_seconds": 5}']
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        url = service.stdout.readline().strip()
        request = urllib.request.Request(url, json.dumps({"code": "print(1)"}).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["run_result"]["stdout"] == "1\n"
        service.send_signal(signal.SIGTERM)
        _, said = service.communicate(timeout=20)
    assert (service.returncode, said) == (0, "")
    assert not list((tmp_path / "running").rglob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "key", "code", "line"),
    [
        (["--host", "0.0.0.0"], None, 78, "the code sandbox would run anybody's code at 0.0.0.0: set "),
        (["--limits", '{"run_second": 5}'], None, 78, "1 validation error for CodeSandboxSettings"),
        (["--limits", '{"libraries": ["nosuch"]}'], None, 78, "train.tools.code.libraries names nosuch"),
        (["--host", "192.0.2.1"], "k", 75, "the code sandbox cannot listen at 192.0.2.1:"),
    ],
)
def test_what_cannot_work_is_one_line(
    tmp_path: Path, arguments: list[str], key: str | None, code: int, line: str
) -> None:
    variables = os.environ | ({"AGENTIC_CODE_SANDBOX_KEY": key} if key else {})
    words = [*COMMAND, "--port", "0", "--store", str(tmp_path), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, env=variables, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
