"""SkyPilot's dry run of a rendered task, without a network: its own optimizer and provisioner, asked by its Python
interface, choose nodes of a cluster that an API server in memory describes.

Stood in for, beside the cluster: the list of accelerators, which SkyPilot downloads otherwise, and programs that it
wants to find on PATH and a dry run never calls.
"""

import json
import os
import subprocess
import urllib.request
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from kube_thread import kube_on_a_thread, write_kubeconfig

from workflows.settings import load_settings
from workflows.targets import skypilot
from workflows.targets.launch import Launch

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / "build" / "skypilot" / "bin" / "python"

DRY_RUN = """
import sys
import sky, yaml
from sky import execution
with open(sys.argv[1]) as file:
    task = sky.Task.from_yaml_config(yaml.safe_load(file), secrets_overrides=[("RAY_AUTH_TOKEN", "a" * 64)])
execution.launch(task, cluster_name="agentic-grpo", dryrun=True)
"""

pytestmark = [pytest.mark.skypilot, pytest.mark.timeout(240)]


def node(name: str, gpus: int) -> dict[str, Any]:
    room = {"cpu": "128", "memory": "1000Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "status": {
            **{"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }


def home_of_skypilot(folder: Path) -> dict[str, str]:
    """An environment in which SkyPilot finds what it asks a machine for."""
    catalog = folder / ".sky" / "catalogs" / "v8" / "common" / "accelerators.csv"
    catalog.parent.mkdir(parents=True)
    catalog.write_text("AcceleratorName,Clouds\nH100,kubernetes\n")
    for name in ("socat", "nc", "rsync"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return os.environ | {
        "HOME": str(folder),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }


def dry_run(folder: Path, gpus: int) -> subprocess.CompletedProcess[str]:
    """Of the agentic task, on a cluster of one node with so many GPUs."""
    settings = load_settings("swe-qwen2.5-7b", (), {})
    launch = Launch("first", "swe-qwen2.5-7b", (), (), None, PurePosixPath("/project"), PurePosixPath("/workspace"))
    task = folder / "task.yaml"
    task.write_text(skypilot.to_yaml(skypilot.render(settings, launch)))
    with kube_on_a_thread() as server:
        for kind, thing in (("nodes", node("gpu-1", gpus)), ("namespaces", {"metadata": {"name": "default"}})):
            address = f"{server.address}/api/v1/{kind}"
            urllib.request.urlopen(urllib.request.Request(address, json.dumps(thing).encode())).close()
        environment = home_of_skypilot(folder) | {"KUBECONFIG": str(write_kubeconfig(folder, server.address))}
        words = [str(PYTHON), "-c", DRY_RUN, str(task)]
        return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_dry_run_finds_the_nodes_that_the_task_asks_for(tmp_path: Path) -> None:
    done = dry_run(tmp_path, gpus=8)
    assert done.returncode == 0, done.stdout + done.stderr
    (chosen,) = [line.split() for line in done.stdout.splitlines() if "H100:8" in line]
    assert chosen[:2] == ["Kubernetes", "(c)"]
    assert "Dryrun finished" in done.stdout + done.stderr


def test_a_dry_run_says_what_the_cluster_lacks(tmp_path: Path) -> None:
    done = dry_run(tmp_path, gpus=4)
    assert done.returncode != 0
    assert "H100" in done.stderr
