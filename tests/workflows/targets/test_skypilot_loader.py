"""The rendered tasks, read by SkyPilot itself, in an environment of its own (`scripts/skypilot_env.sh`)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

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
    "secrets": sorted(ref.name for ref in task.managed_secrets), "run": task.run, "setup": task.setup,
}))
"""

pytestmark = [pytest.mark.skypilot, pytest.mark.timeout(120)]


def load(path: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """`sky.Task.from_yaml`, with a home of its own and without telemetry."""
    environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    words = [str(PYTHON), "-c", LOAD, str(path)]
    return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_mistake_in_a_task_would_be_found(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((GOLDEN / "agentic-grpo.yaml").read_text().replace("num_nodes:", "num_node:"))
    done = load(broken, tmp_path)
    assert done.returncode != 0
    assert "num_node" in done.stderr
