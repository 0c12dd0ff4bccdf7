"""The rendered tasks, read by SkyPilot itself, in an environment of its own (`scripts/skypilot_env.sh`)."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden"
PYTHON = ROOT / "build" / "skypilot" / "bin" / "python"

LOAD = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(json.dumps({
    "name": task.name, "nodes": task.num_nodes, "ports": resources.ports, "memory": resources.memory,
    "accelerators": resources.accelerators, "infra": resources.infra.to_str(), "image": resources.image_id,
    "secrets": sorted(str(ref) for ref in task.managed_secret_refs), "run": task.run, "setup": task.setup,
}))
"""

pytestmark = [pytest.mark.skypilot, pytest.mark.timeout(120)]


def load(path: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """`sky.Task.from_yaml`, with a home of its own and without telemetry."""
    environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    words = [str(PYTHON), "-c", LOAD, str(path)]
    return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "nodes", "accelerators", "secrets"),
    [
        ("verl-ppo", 2, {"H100": 1}, ["RAY_AUTH_TOKEN", "WANDB_API_KEY"]),
        ("verl-grpo", 2, {"H100": 1}, ["RAY_AUTH_TOKEN", "WANDB_API_KEY"]),
        ("agentic-grpo", 1, {"H100": 8}, ["RAY_AUTH_TOKEN"]),
    ],
)
def test_skypilot_reads_the_task_as_we_mean_it(
    name: str, nodes: int, accelerators: dict[str, int], secrets: list[str], tmp_path: Path
) -> None:
    done = load(GOLDEN / f"{name}.yaml", tmp_path)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    assert (read["name"], read["nodes"], read["accelerators"]) == (name, nodes, accelerators)
    assert (read["ports"], read["memory"]) == (["8265"], "128+")
    assert [secret for secret in secrets if any(secret in one for one in read["secrets"])] == secrets
    task = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    assert (read["run"], read["setup"]) == (task["run"], task["setup"])


def test_skypilot_takes_the_volume_that_the_document_shows(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n(# volume.yaml\n.*?)^```", (ROOT / "docs/launchers.md").read_text(), re.M | re.S)
    code = (
        "import json, sys; from sky.utils import common_utils, schemas; "
        "common_utils.validate_schema(json.loads(sys.argv[1]), schemas.get_volume_schema(), 'volume: ')"
    )
    words = [str(PYTHON), "-c", code, json.dumps(yaml.safe_load(shown))]
    environment = os.environ | {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_mistake_in_a_task_would_be_found(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((GOLDEN / "agentic-grpo.yaml").read_text().replace("num_nodes:", "num_node:"))
    done = load(broken, tmp_path)
    assert done.returncode != 0
    assert "num_node" in done.stderr
