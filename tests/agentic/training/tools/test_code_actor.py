"""The code sandbox as an actor of a real Ray on this machine, which a process of its own starts and ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import asyncio, json, sys, urllib.request
from pathlib import Path

import ray

from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.tools.code_actor import start_code_sandbox
from agentic.training.tools.settings import CodeSandboxSettings

ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
parts = CodeSandboxSettings(libraries=()), BubblewrapSandbox(), Path(sys.argv[1])
actor, reached = start_code_sandbox(*parts)
_, again = start_code_sandbox(*parts)
headers = {"Authorization": f"Bearer {reached.key}", "Content-Type": "application/json"}
request = urllib.request.Request(reached.url, json.dumps({"code": "print(6 * 7)"}).encode(), headers)
with urllib.request.urlopen(request, timeout=60) as response:
    answer = json.load(response)
ray.get(actor.stop.remote())
ray.shutdown()
print(json.dumps({"same": reached == again, "answer": answer}))
"""


@pytest.mark.timeout(240)
def test_an_actor_serves_code_to_whoever_has_its_key(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "images")], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["same"] is True
    assert (said["answer"]["status"], said["answer"]["run_result"]["stdout"]) == ("Success", "42\n")
