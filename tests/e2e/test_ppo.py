"""The demo in short with `train.algorithm=ppo`: verl trains a critic beside the policy, saves both and goes on from
there, and what is trained is what was sampled.

Everything is real: the workflow's local run, bubblewrap, Harbor's trials, the proxy, vLLM, Ray and verl.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.rollout.records import Phase, read_records
from agentic.training.audit import audit

REPOSITORY = Path(__file__).parents[2]
RUN_ID = "ppo"
SETTINGS = (
    "train.algorithm=ppo",
    "data.train=32",
    "data.same_template=8",
    "data.new_template=4",
    "model.demonstrations=400",
    "model.steps=40",
    "train.steps=3",
    "train.validate_every=2",
    "train.save_every=1",
    "train.keep_checkpoints=2",
    "train.prompts_per_step=4",
    "train.rollouts_per_prompt=4",
    "train.micro_batch_rollouts=16",
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def submit(workspace: Path, *words: str) -> str:
    command = [sys.executable, "workflows/submit.py", *words]
    environment = os.environ | {"AGENTIC_WORKSPACE": str(workspace)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def metrics_of(run_dir: Path) -> dict[int, dict[str, float]]:
    lines = [line for file in sorted(run_dir.glob("metrics/*.jsonl")) for line in file.read_text().splitlines()]
    return {row["step"]: row["data"] for row in map(json.loads, lines) if "critic/vf_loss" in row["data"]}


def test_a_critic_is_trained_saved_and_gone_on_with(tmp_path: Path) -> None:
    submit(tmp_path, "local", "--profile", "demo", "--run-id", RUN_ID, *SETTINGS)
    run_dir = tmp_path / "runs" / RUN_ID
    assert len(read_records(run_dir, Phase.TRAIN)) == 3 * 4 * 4
    assert audit(run_dir).holds
    trained = metrics_of(run_dir)
    assert sorted(trained) == [1, 2, 3]
    assert all(math.isfinite(row[name]) for row in trained.values() for name in ("critic/vf_loss", "critic/grad_norm"))
    kept = {str(folder.relative_to(run_dir / "checkpoints")) for folder in run_dir.glob("checkpoints/*/critic")}
    assert kept == {"global_step_2/critic", "global_step_3/critic"}

    submit(tmp_path, "local", "--profile", "demo", "--run-id", RUN_ID, *SETTINGS, "train.steps=4")
    assert sorted(metrics_of(run_dir)) == [1, 2, 3, 4]
    assert len(read_records(run_dir, Phase.TRAIN)) == 4 * 4 * 4, "no step is trained twice"
    assert audit(run_dir).holds
    last = sorted(run_dir.glob("metrics/*.jsonl"))[-1].read_text().splitlines()
    assert {json.loads(line)["step"] for line in last} <= {3, 4}
