"""The shortened demo, as a newcomer runs it: killed and interrupted in the middle of training, then gone on with.

Everything is real: the workflow's local run, bubblewrap, Harbor's trials, the proxy, vLLM, Ray and verl. What is small
is the number of tasks and steps and the warm start, so no gain is asserted here; docs/results has the measured runs.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentic import processes
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, read_records
from agentic.training import checkpoints
from agentic.training.audit import audit

REPOSITORY = Path(__file__).parents[2]
RUN_ID = "e2e"
SETTINGS = (
    "data.train=32",
    "data.same_template=12",
    "data.new_template=4",
    "model.demonstrations=400",
    "model.steps=40",
    "train.steps=3",
    "train.validate_every=3",
    "train.save_every=1",
    "train.prompts_per_step=4",
    "train.rollouts_per_prompt=4",
    "train.micro_batch_rollouts=16",
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]


class Demo:
    """The command of the README, with its output."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.run_dir = workspace / "runs" / RUN_ID
        self.output = workspace / "output.txt"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "workflows/submit.py", "local", "--profile", "demo", "--run-id", RUN_ID, *SETTINGS]
        environment = os.environ | {"AGENTIC_WORKSPACE": str(self.workspace)}
        with self.output.open("wb") as output:
            self.started.append(
                subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output)
            )
        return self.started[-1]

    def said(self) -> str:
        return self.output.read_text()

    def wait_until(self, process: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
        while not holds():
            assert process.poll() is None, self.said()
            time.sleep(0.2)

    def kill_step(self, module: str) -> None:
        """SIGKILL to the step's own process, as a lost node would end it."""
        for pid, line in self.command_lines():
            if f"{module}:run".encode() in line:
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"{module} does not run: {self.said()}")

    def latest_checkpoint(self) -> int:
        return checkpoints.latest_step(self.run_dir / "checkpoints") or 0

    def trainers(self) -> int:
        return sum(b"verl.trainer.main_ppo" in line for _, line in self.command_lines())

    def command_lines(self) -> Iterator[tuple[int, bytes]]:
        """Of the run's processes; many, such as those of sandboxes, are gone before they can be looked at."""
        for pid in processes.find(RUN_ID, self.workspace):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield pid, Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    workspace = tmp_path_factory.mktemp("workspace")
    demo = Demo(workspace)
    yield demo
    for process in demo.started:
        process.kill()
        process.wait()
    processes.end(RUN_ID, workspace, grace_seconds=0)


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if f" {folder}" in line]


def test_a_killed_step_is_tried_again_and_an_interrupted_run_leaves_nothing_running(demo: Demo) -> None:
    process = demo.start()
    demo.wait_until(process, lambda: demo.latest_checkpoint() >= 1)
    time.sleep(random.uniform(0, 4))
    demo.kill_step("steps.train")
    demo.wait_until(process, lambda: "attempt 2" in demo.said())
    demo.wait_until(process, lambda: demo.trainers() == 1)
    process.send_signal(signal.SIGINT)

    assert process.wait(120) == 130, demo.said()
    assert processes.find(RUN_ID, demo.workspace) == []
    assert mounts_below(demo.workspace) == []
    assert f"--run-id {RUN_ID}" in demo.said().splitlines()[-1], "the last line says how to go on"


def test_going_on_resumes_at_the_last_checkpoint_and_ends_with_report_and_rates(demo: Demo) -> None:
    resumed_from = demo.latest_checkpoint()
    process = demo.start()
    measured = random.randint(1, 10)
    demo.wait_until(process, lambda: len(read_records(demo.run_dir, Phase.EVALUATE)) >= measured)
    demo.kill_step("steps.evaluate")

    assert process.wait(900) == 0, demo.said()
    attempts = sorted((demo.run_dir / "metrics").glob("attempt-*.jsonl"))
    first_step = json.loads(attempts[-1].read_text().splitlines()[0])["step"]
    assert first_step == resumed_from + 1, "training went on after the last checkpoint, without validating again"
    assert "before" in demo.said()
    assert "report.html" in demo.said()
    assert processes.find(RUN_ID, demo.workspace) == []
    assert mounts_below(demo.workspace) == []


def test_every_held_out_task_is_measured_before_and_after(demo: Demo) -> None:
    evaluation = json.loads((demo.run_dir / "evaluation.json").read_text())

    counts = {
        split: (rates["before"]["graded"], rates["after"]["graded"]) for split, rates in evaluation["splits"].items()
    }
    assert counts == {"same-template": (12, 12), "new-template": (4, 4)}
    tasks = [record.task for record in read_records(demo.run_dir, Phase.EVALUATE)]
    assert len(tasks) == len(set(tasks)), "no rollout was run again after the step had been killed"


def test_every_rollout_of_training_is_recorded_with_its_reward(demo: Demo) -> None:
    records = read_records(demo.run_dir, Phase.TRAIN)

    assert {record.step for record in records} == {1, 2, 3}
    assert all(record.reward in (0.0, 1.0) for record in records if record.outcome.is_graded)
    assert sum(record.outcome.is_graded for record in records) >= 0.9 * len(records), "infrastructure held"


def test_the_trainers_log_says_how_the_rollouts_of_each_step_went(demo: Demo) -> None:
    last_attempt = sorted((demo.run_dir / "metrics").glob("attempt-*.jsonl"))[-1]
    lines = [json.loads(line) for line in last_attempt.read_text().splitlines()]
    logged = {line["step"]: line["data"] for line in lines if "rollouts/sum/rollouts" in line["data"]}
    spreads = [f"{name}/{kind}" for name in ("reward", "turns", "sampled_tokens") for kind in ("mean", "min", "max")]
    seconds = [f"seconds/{part}/mean" for part in ("sandbox", "agent", "engine", "verifier", "rollout")]

    assert set(logged) == {line["step"] for line in lines if "actor/grad_norm" in line["data"]} != set()
    for step, data in logged.items():
        records = [record for record in read_records(demo.run_dir, Phase.TRAIN) if record.step == step]
        counts = {outcome: data[f"rollouts/sum/{outcome}"] for outcome in Outcome}
        graded = sum(count for outcome, count in counts.items() if outcome.is_graded)
        assert 16 <= data["rollouts/sum/rollouts"] == sum(counts.values()) <= len(records)
        assert data["rollouts/resolve_rate"] == pytest.approx(counts[Outcome.SOLVED] / graded)
        assert {f"rollouts/{name}" for name in (*spreads, *seconds)} <= data.keys()
        assert data["rollouts/seconds/rollout/mean"] >= data["rollouts/seconds/agent/mean"] > 0
    everything = [json.loads(line)["data"] for line in (demo.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert any("rollouts/validation/resolve_rate" in data for data in everything)


def test_the_tokens_trained_are_the_tokens_sampled(demo: Demo) -> None:
    verdict = audit(demo.run_dir)

    assert verdict.holds, verdict
    assert verdict.steps == 3


def test_the_trainers_probabilities_are_those_that_the_engine_sampled_with(demo: Demo) -> None:
    lines = [json.loads(line) for line in (demo.run_dir / "metrics.jsonl").read_text().splitlines()]
    differences = {line["step"]: line["data"]["training/rollout_probs_diff_max"] for line in lines if line["step"] > 0}
    last_attempt = sorted((demo.run_dir / "metrics").glob("attempt-*.jsonl"))[-1]
    resumed_from = json.loads(last_attempt.read_text().splitlines()[0])["step"] - 1

    # verl saves a step before it logs it: a kill in between loses that step's line, and no other's.
    assert {1, 2, 3} - differences.keys() <= {resumed_from}
    assert max(differences.values()) < 1e-3


def test_the_checkpoint_loads_and_differs_from_the_starting_policy(demo: Demo) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    evaluation = json.loads((demo.run_dir / "evaluation.json").read_text())
    start = AutoModelForCausalLM.from_pretrained(demo.workspace / "models" / "tiny").state_dict()
    trained = AutoModelForCausalLM.from_pretrained(demo.run_dir / evaluation["checkpoint"]).state_dict()

    assert start.keys() == trained.keys()
    assert any(not torch.equal(start[name], trained[name]) for name in start)


def test_a_finished_run_is_replayed_without_doing_anything_again(demo: Demo) -> None:
    records = (demo.run_dir / "rollouts" / "train.jsonl").read_bytes()
    started = time.monotonic()

    assert demo.start().wait(120) == 0, demo.said()

    assert time.monotonic() - started < 60
    assert (demo.run_dir / "rollouts" / "train.jsonl").read_bytes() == records
