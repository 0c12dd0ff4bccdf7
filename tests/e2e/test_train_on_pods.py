"""A training step whose trials run in pods of the real cluster: the local run, with `sandbox.provider=pod` and no other
difference. Run by `python -m testbed run python -m pytest -m cluster tests/e2e/test_train_on_pods.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kube_rig import BASE_IMAGE, Spaces

from agentic.rollout.records import Phase, read_records
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import MutationData
from agentic.training.audit import audit

REPOSITORY = Path(__file__).parents[2]
RUN_ID = "pods"
SETTINGS = (
    "data.source=folder",
    "data.held_out_fraction=0.25",
    "model.demonstrations=200",
    "model.steps=20",
    "train.steps=1",
    "train.validate_every=1",
    "train.save_every=1",
    "train.prompts_per_step=4",
    "train.rollouts_per_prompt=4",
    "train.micro_batch_rollouts=16",
    "rollout.concurrency=16",
    "rollout.start_seconds=60",
    "rollout.grading_seconds=60",
    "rollout.deadline_seconds=240",
)

READ_ONLY = '\n[metadata.sandbox]\nread_only_root = true\nwritable_paths = ["/app"]\n'

pytestmark = [pytest.mark.cluster, pytest.mark.scale, pytest.mark.timeout(900)]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Repair tasks that name an image and bring their files beside it, which Harbor uploads. Every other one allows a
    read-only root."""
    prepare(MutationData(train=12, same_template=2, new_template=2), tmp_path / "made", lambda *_: None)
    folder = tmp_path / "made" / "tasks"
    for number, task in enumerate(sorted(folder.iterdir())):
        (task / "environment" / "Dockerfile").unlink()
        config = (task / "task.toml").read_text()
        image = f'docker_image = "{BASE_IMAGE}"\nworkdir = "/app"\n'
        config = (
            config.replace("[environment]\n", f"[environment]\n{image}")
            if "[environment]" in config
            else f"{config}\n[environment]\n{image}"
        )
        says = READ_ONLY if number % 2 else ""
        (task / "task.toml").write_text(config + says)
    return folder


def test_a_training_step_with_its_trials_in_pods(tasks: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    with Spaces(tmp_path) as spaces:
        space = spaces.of("pod")
        sandbox = ("sandbox.provider=pod", f"sandbox.base_image={BASE_IMAGE}", "sandbox.memory_mb=256")
        command = [sys.executable, "workflows/submit.py", "local", "--profile", "demo", "--run-id", RUN_ID]
        done = subprocess.run(
            [*command, f"data.path={tasks}", *SETTINGS, *sandbox],
            cwd=REPOSITORY,
            env=os.environ | {"AGENTIC_WORKSPACE": str(workspace), "KUBECONFIG": str(space.account)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        left = spaces._access.get("pods,jobs", f"--namespace={space.namespace}")["items"]
    assert [one["metadata"]["name"] for one in left if not one["metadata"].get("deletionTimestamp")] == []
    run_dir = workspace / "runs" / RUN_ID
    records = read_records(run_dir, Phase.TRAIN)
    assert len(records) == 16
    assert all(record.outcome.is_graded for record in records), "nothing was lost to infrastructure"
    assert (run_dir / "checkpoints" / "global_step_1").is_dir()
    verdict = audit(run_dir)
    assert verdict.holds, verdict
