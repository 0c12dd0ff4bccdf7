"""The rendered tasks, read by SkyPilot itself, in an environment of its own (`scripts/skypilot_env.sh`)."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden"
PYTHON = ROOT / "build" / "skypilot" / "bin" / "python"

LOAD = """
import json, sys
import sky
from sky.utils import common_utils, schemas

def read(path):
    task = sky.Task.from_yaml(path)
    (resources,) = task.resources
    return {
        "name": task.name, "nodes": task.num_nodes, "ports": resources.ports, "memory": resources.memory,
        "accelerators": resources.accelerators, "infra": resources.infra.to_str(), "image": resources.image_id,
        "secrets": sorted(str(ref) for ref in task.managed_secret_refs), "run": task.run, "setup": task.setup,
    }

def check_volume(volume):
    common_utils.validate_schema(volume, schemas.get_volume_schema(), "volume: ")

def attempt(act, *given):
    try:
        return {"read": act(*given)}
    except Exception as error:
        return {"refused": str(error)}

tasks, volumes = json.load(sys.stdin)
print(json.dumps([[attempt(read, path) for path in tasks], [attempt(check_volume, volume) for volume in volumes]]))
"""

TASKS = ("verl-ppo", "verl-grpo", "agentic-grpo")

pytestmark = [pytest.mark.skypilot, pytest.mark.timeout(120)]


def shown_volume() -> Any:
    (shown,) = re.findall(r"^```yaml\n(# volume.yaml\n.*?)^```", (ROOT / "docs/launchers.md").read_text(), re.M | re.S)
    return yaml.safe_load(shown)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What SkyPilot makes of each, all in one process, whose start takes longer than all the rest; with a home of its
    own and without telemetry."""
    home = tmp_path_factory.mktemp("home")
    broken = home / "broken.yaml"
    broken.write_text((GOLDEN / "agentic-grpo.yaml").read_text().replace("num_nodes:", "num_node:"))
    paths = [*(str(GOLDEN / f"{name}.yaml") for name in TASKS), str(broken)]
    volumes = [shown_volume(), shown_volume() | {"sizes": "1Gi"}]
    environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    words, given = [str(PYTHON), "-c", LOAD], json.dumps([paths, volumes])
    done = subprocess.run(words, env=environment, cwd=ROOT, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tasks, read_volumes = json.loads(done.stdout.splitlines()[-1])
    return dict(zip((*TASKS, "broken", "volume", "broken volume"), [*tasks, *read_volumes], strict=True))


@pytest.mark.parametrize(
    ("name", "nodes", "accelerators", "secrets"),
    [
        ("verl-ppo", 2, {"H100": 1}, ["RAY_AUTH_TOKEN", "WANDB_API_KEY"]),
        ("verl-grpo", 2, {"H100": 1}, ["RAY_AUTH_TOKEN", "WANDB_API_KEY"]),
        ("agentic-grpo", 1, {"H100": 8}, ["RAY_AUTH_TOKEN"]),
    ],
)
def test_skypilot_reads_the_task_as_we_mean_it(
    name: str, nodes: int, accelerators: dict[str, int], secrets: list[str], answers: dict[str, Any]
) -> None:
    read = answers[name].get("read")
    assert read is not None, answers[name]
    assert (read["name"], read["nodes"], read["accelerators"]) == (name, nodes, accelerators)
    assert (read["ports"], read["memory"]) == (["8265"], "128+")
    assert [secret for secret in secrets if any(secret in one for one in read["secrets"])] == secrets
    task = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    assert (read["run"], read["setup"]) == (task["run"], task["setup"])


def test_skypilot_takes_the_volume_that_the_document_shows(answers: dict[str, Any]) -> None:
    assert answers["volume"] == {"read": None}


def test_mistakes_would_be_found(answers: dict[str, Any]) -> None:
    assert "num_node" in answers["broken"]["refused"]
    assert "sizes" in answers["broken volume"]["refused"]
