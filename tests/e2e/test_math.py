"""The profile math in short: verl's ToolAgentLoop trains with a sandboxed interpreter, and leaves what others leave.

Everything is real: the workflow's local run, the warm start, bubblewrap, vLLM, Ray and verl. So few steps show no gain;
docs/results/math.json has the measured runs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, read_records
from agentic.training.audit import audit

REPOSITORY = Path(__file__).parents[2]
SETTINGS = (
    "data.train=32",
    "data.validation=8",
    "data.test=4",
    "model.demonstrations=800",
    "model.steps=120",
    "train.steps=2",
    "train.validate_every=2",
    "train.save_every=2",
    "train.prompts_per_step=4",
    "train.rollouts_per_prompt=4",
    "train.micro_batch_rollouts=16",
    "train.tools.success_reward=0.5",
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("loop", ["tool_agent", "remote_agent", "single_turn_agent"])
def test_the_same_profile_trains_by_each_loop(tmp_path_factory: pytest.TempPathFactory, loop: str) -> None:
    workspace = tmp_path_factory.getbasetemp() / "math"  # the loops share the policy and the data set
    workspace.mkdir(exist_ok=True)
    run_id = loop.replace("_", "-")
    command = [sys.executable, "workflows/submit.py", "local", "--profile", "math", "--run-id", run_id, *SETTINGS]
    environment = os.environ | {"AGENTIC_WORKSPACE": str(workspace)}
    words = [*command, f"train.agent_loop={loop}"]
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    run_dir = workspace / "runs" / run_id
    records = read_records(run_dir, Phase.TRAIN)
    assert len(records) == 2 * 4 * 4
    assert {record.outcome for record in records} <= {Outcome.SOLVED, Outcome.FAILED, Outcome.CONTEXT_OVERFLOW}
    assert audit(run_dir).holds
    evaluation = json.loads((run_dir / "evaluation.json").read_text())
    assert [split["after"]["graded"] for split in evaluation["splits"].values()] == [8, 4]
    steps = json.loads((run_dir / "report.json").read_text())["steps"]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(low <= mean <= high for step in steps for low, mean, high in (step["reward"], step["turns"]))
    if loop == "tool_agent":
        assert any(record.tool_reward > 0 for record in records)
    if loop == "single_turn_agent":
        assert {record.turns for record in records} == {1}
