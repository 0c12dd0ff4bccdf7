"""A finished run's folder as the steps leave it, with made-up but consistent figures; tests then damage it."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentic.report import write

STEPS, TASKS, VALIDATE_EVERY = 12, 128, 4
SPLITS = {"repair/same-template": (0.3, 0.75), "repair/new-template": (0.22, 0.3)}
STARTED = 1_800_000_000.0
DURATIONS = {
    "preflight": 1.2,
    "download-data": 9.5,
    "download-model": 121.0,
    "build-images": 4.5,
    "launch-cluster": 6.1,
    "train": 341.0,
    "evaluate": 95.0,
}

RunFolder = Callable[..., Path]


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """Writes `tmp_path/NAME`; `learns=False` is a control."""
    return partial(make_run, tmp_path)


@pytest.fixture(scope="session")
def reported_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose report is written, for tests that only read: drawing takes a second."""
    run = make_run(tmp_path_factory.mktemp("reported"))
    write(run)
    return run


def make_run(folder: Path, name: str = "demo-1", *, seed: int = 1, learns: bool = True) -> Path:
    run = folder / name
    dice = random.Random(seed)
    write_json(run / "settings.json", {"profile": "demo", "train": {"seed": seed, "steps": STEPS}})
    write_markers(run)
    write_lines(run / "metrics.jsonl", [metrics(step, dice, learns=learns) for step in range(STEPS + 1)])
    write_rollouts(run, dice, learns=learns)
    write_evaluation(run, learns=learns)
    for step in range(VALIDATE_EVERY, STEPS + 1, VALIDATE_EVERY):
        weights = run / f"checkpoints/global_step_{step}/actor/model.safetensors"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(bytes(2_300_000))
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text(str(STEPS))
    return run


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_lines(path: Path, values: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def write_markers(run: Path) -> None:
    started = STARTED
    for step, seconds in DURATIONS.items():
        for shard in range(2 if step == "build-images" else 1):
            marker = {
                "inputs": {},
                "outputs": {},
                "attempt": 2 if step == "train" else 1,
                "started": started,
                "ended": started + seconds + shard,
                "seconds": seconds + shard,
            }
            write_json(run / f"done/{step}-{shard:016x}.json", marker)
        started += seconds


def rate_at(split: str, step: int, *, learns: bool, bonus: float = 0.0) -> float:
    before, after = SPLITS[split]
    return bonus + (before + (after - before) * min(1.0, step / 10) if learns else before)


def metrics(step: int, dice: random.Random, *, learns: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if step % VALIDATE_EVERY == 0:
        for split in SPLITS:
            data[f"val-core/{split}/acc/mean@1"] = round(rate_at(split, step, learns=learns) * TASKS) / TASKS
            data[f"val-aux/{split}/reward/mean@1"] = 9.0
        data["timing_s/testing"] = 6.0
    if step > 0:
        score = rate_at("repair/same-template", step, learns=learns) + dice.uniform(-0.06, 0.06)
        data |= {"critic/score/mean": score, "critic/score/max": 1.0, "critic/score/min": 0.0}
        data |= {"num_turns/min": 2, "num_turns/max": 10}
        data |= {"num_turns/mean": 6 + dice.random(), "response_length/mean": 95 + 9 * dice.random()}
        data |= {"response_length/max": 150, "actor/grad_norm": None, "perf/label": "text"}
        data |= {"training/rollout_probs_diff_max": 10 ** -dice.uniform(5, 6)}
        data |= {"training/rollout_probs_diff_mean": 10 ** -dice.uniform(7, 8)}
        parts = {"gen": 6.4, "old_log_prob": 1.3, "update_actor": 3.0, "adv": 0.02, "update_weights": 0.1}
        data |= {f"timing_s/{name}": seconds * dice.uniform(0.9, 1.1) for name, seconds in parts.items()}
        data["timing_s/step"] = 11.9
    return {"step": step, "data": data}


def rollout(phase: str, step: int, index: int, split: str, outcome: str) -> dict[str, Any]:
    return {
        "rollout_id": f"{phase}-{step}-{index}",
        "phase": phase,
        "step": step,
        "task": f"repair-{index:04d}",
        "split": split,
        "outcome": outcome,
        "reward": None if outcome == "infra" else float(outcome == "solved"),
        "attempt": 1,
        "turns": 3,
        "started": STARTED + step,
        "seconds": {"total": 1.1, "start": 0.2, "agent": 0.6, "grade": 0.2},
    }


def write_rollouts(run: Path, dice: random.Random, *, learns: bool) -> None:
    training = []
    for step in range(1, STEPS + 1):
        for index in range(64):
            solved = dice.random() < rate_at("repair/same-template", step, learns=learns)
            outcome = "solved" if solved else dice.choice(["failed"] * 12 + ["agent_timeout", "context_overflow"])
            training.append(rollout("train", step, index, "repair/train", outcome))
    training[70] |= {"outcome": "infra", "reward": None, "attempt": 3}
    training[70] |= {"infra_reason": "sandbox lost", "lost": ["sandbox lost", "verifier crashed"]}
    write_lines(run / "rollouts/train.jsonl", training)
    validation = [
        rollout(
            "validation",
            step,
            index,
            split,
            "solved" if index < rate_at(split, step, learns=learns) * TASKS else "failed",
        )
        for step in range(0, STEPS + 1, VALIDATE_EVERY)
        for split in SPLITS
        for index in range(TASKS)
    ]
    write_lines(run / "rollouts/validation.jsonl", validation)
    write_lines(
        run / "rollouts/evaluate.jsonl",
        [
            rollout("evaluate", STEPS, index, split, "solved") | {"checkpoint": f"checkpoints/global_step_{STEPS}"}
            for split in SPLITS
            for index in range(TASKS)
        ],
    )


def write_evaluation(run: Path, *, learns: bool) -> None:
    splits = {}
    for split in SPLITS:
        sides = {}
        for side, step in (("before", 0), ("after", STEPS)):
            resolved = round(rate_at(split, step, learns=learns) * TASKS)
            sides[side] = {"resolved": resolved, "graded": TASKS, "infra": 0, "rate": resolved / TASKS}
        splits[split] = sides
    evaluation = {
        "checkpoint": f"checkpoints/global_step_{STEPS}",
        "checkpoint_step": STEPS,
        "seconds": 95.0,
        "splits": splits,
    }
    write_json(run / "evaluation.json", evaluation)
