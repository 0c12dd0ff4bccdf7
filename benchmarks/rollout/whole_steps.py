"""Whole training steps with our agent loop and with verl's own: stock verl, vLLM, Ray, the same policy and tasks.

The policy, data and settings of a demo run's workspace are used and left alone, and the policy stays as it is. Each
loop trains so many steps in a run of its own, one after the other; the time of a step is verl's `timing_s/step`, and
the first one, which warms up, is left out.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentic import processes
from agentic.rollout.records import Phase, read_records
from agentic.training import children, ray_cluster
from agentic.training.job import Launch, prepare
from agentic.training.jobs import TrainJob
from agentic.training.resume import Plan

from .step_loops import COMMANDS, TOKENS, TOOL_SECONDS_VARIABLE

ROOT = Path(__file__).parents[2]
LOOPS = {"verl ToolAgentLoop": "verls_loop.Verls", "ours": "step_loops.Ours"}
TOOL_SECONDS = (1.0, 10.0)
"""An edit, and a run of a test suite."""
STANDSTILL = 1e-12
"""A learning rate: rewards are drawn here, and policies that learned from them would call tools unequally often."""
RATIO = 1.05
"""The goal."""
PARTS = ("step", "gen", "old_log_prob", "update_actor", "update_weights")


def make_job(workspace: Path, runs: Path, name: str, steps: int) -> TrainJob:
    """A job of its own on a demo run's policy and data."""
    found = sorted(workspace.glob("runs/*/settings.json"))
    if not found:
        raise SystemExit(f"{workspace} has no run: make one with AGENTIC_WORKSPACE={workspace} make demo")
    known = json.loads(found[0].read_text())
    rare = 10 * steps
    at_once = known["train"]["prompts_per_step"] * known["train"]["rollouts_per_prompt"]
    return TrainJob(
        run_id=name,
        run_dir=runs / "runs" / name,
        model_dir=workspace / "models" / known["model"]["name"],
        data_dir=workspace / "datasets" / known["data"]["name"],
        store_dir=workspace / "images",
        train=known["train"]
        | {"steps": steps, "learning_rate": STANDSTILL, "validate_every": rare, "save_every": rare},
        ray=known["ray"],
        rollout=known["rollout"] | {"keep_trials": "none", "concurrency": at_once},
        sandbox=known["sandbox"],
    )


async def train(job: TrainJob, loop: str, tool_seconds: float) -> list[dict[str, float]]:
    """verl's timings, step by step."""
    job.run_dir.mkdir(parents=True)
    launch = prepare(job, Plan(is_done=False, validates_first=False, validates_only=False))
    try:
        target = f"benchmarks.rollout.{loop}"
        (job.run_dir / "agent_loops.yaml").write_text(f"- name: remote_agent\n  _target_: {target}\n")
        await _run(job, launch, {TOOL_SECONDS_VARIABLE: str(tool_seconds), "PYTHONPATH": str(ROOT)})
    finally:
        ray_cluster.stop(job.run_id, job.run_dir)
        processes.end(job.run_id, job.workspace, grace_seconds=5)
    rows = [json.loads(line)["data"] for line in launch.metrics.read_text().splitlines()]
    return [{part: row.get(f"timing_s/{part}", 0.0) for part in PARTS} for row in rows if "timing_s/step" in row]


async def _run(job: TrainJob, launch: Launch, variables: dict[str, str]) -> None:
    given = [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in variables.items()]
    with launch.log.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *processes.bound([sys.executable, "-m", "verl.trainer.main_ppo", *launch.arguments, *given]),
            env=os.environ | launch.environment | variables,
            cwd=job.run_dir,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            await process.wait()
        finally:
            await children.end(process, 20.0)
    if process.returncode:
        sys.stderr.write("".join(f"{line}\n" for line in launch.log.read_text(errors="replace").splitlines()[-30:]))
        raise SystemExit(f"verl ended with {process.returncode}")


async def compare(workspace: Path, steps: int) -> dict[str, Any]:
    """Both loops with short and with long waits for tools, and the ratios of their steps."""
    rows: list[dict[str, Any]] = []
    phases: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="whole-steps-") as name:
        for tool_seconds in TOOL_SECONDS:
            for loop, kind in LOOPS.items():
                run_id = f"{kind.partition('.')[2].lower()}-{tool_seconds:g}"
                job = make_job(workspace, Path(name), run_id, steps)
                timings = await train(job, kind, tool_seconds)
                rows.append({"tool_seconds": tool_seconds, **_row(loop, timings[1:], job.run_dir)})
                sys.stderr.write(json.dumps(rows[-1]) + "\n")
            phases.append({"tool_seconds": tool_seconds, **_phases(job.run_dir)})
    ratios = {
        f"{theirs['tool_seconds']:g}": round(ours["step_seconds"] / theirs["step_seconds"], 3)
        for theirs, ours in zip(rows[::2], rows[1::2], strict=True)
    }
    return {
        "rollouts_per_step": f"{job.train.prompts_per_step} x {job.train.rollouts_per_prompt}",
        "rows": rows,
        "phases": phases,
        "step_ratio_by_tool_seconds": ratios,
        "goals": {
            f"step time at most {RATIO} of verl's ToolAgentLoop, {seconds} s a tool call": ratio <= RATIO
            for seconds, ratio in ratios.items()
        },
    }


def _row(loop: str, timings: list[dict[str, float]], folder: Path) -> dict[str, Any]:
    tokens = [json.loads(line) for line in (folder / TOKENS).read_text().splitlines()]
    sampled, trained, calls = (sum(line[key] for line in tokens) for key in ("sampled", "trained", "calls"))
    commands = (folder / COMMANDS).read_text().count("\n")
    return {
        "loop": loop,
        "steps": len(timings),
        **{f"{part}_seconds": round(statistics.median(step[part] for step in timings), 2) for part in PARTS},
        "rollouts": len(tokens),
        "calls_per_rollout": round(calls / len(tokens), 2),
        "commands_per_rollout": round(commands / len(tokens), 2),
        "sampled_tokens": sampled,
        "trained_tokens": trained,
        "trained_per_sampled": round(trained / sampled, 4),
    }


def _phases(folder: Path) -> dict[str, float]:
    """Where the seconds of our rollouts went, median; the last rollout of a step is what the step waits for."""
    seconds = [record.seconds for record in read_records(folder, Phase.TRAIN) if record.step > 1]
    spent = {name: [getattr(each, name) for each in seconds] for name in ("start", "agent", "engine", "grade", "total")}
    medians = {f"{name}_seconds": round(statistics.median(values), 2) for name, values in spent.items()}
    return medians | {"longest_seconds": round(max(spent["total"]), 2)}
