"""The whole workflow as a Slurm job: the tiny policy is trained by verl on both nodes, data-parallel over gloo, is told
in the middle that its time is nearly over, comes back and goes on from its checkpoint."""

import json
import time
from pathlib import Path, PurePosixPath

import pytest
from conftest import Job
from slurm_cluster import NODES, SlurmCluster

from agentic.training import checkpoints
from workflows.settings import load_settings
from workflows.targets import slurm
from workflows.targets.launch import Launch

ROOT = Path(__file__).resolve().parents[2]

STEPS = 4

SETTINGS = (
    *("train.nodes=2", "cluster.workers.replicas=1", "machine.memory_gib=1"),
    # As little of everything as makes a step: what is tried is the job around it.
    *("data.train=4", "data.same_template=2", "data.new_template=0", "model.hidden=64", "model.layers=1"),
    *("model.demonstrations=64", "model.steps=8", f"train.steps={STEPS}", f"train.validate_every={STEPS}"),
    *("train.save_every=1", "train.prompts_per_step=2", "train.rollouts_per_prompt=4", "train.micro_batch_rollouts=4"),
    *("train.max_response_tokens=96", "rollout.concurrency=8"),
    # A policy that knows so little earns nothing, and without this there would be no gradient to share.
    'train.overrides=["actor_rollout_ref.actor.entropy_coeff=0.001"]',
    *("slurm.cpus_per_node=2", "slurm.memory=8G", "slurm.time_limit=50", "slurm.dashboard_port=null"),
    "slurm.worker_pause_seconds=0",
)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(2400)]


def submitted(cluster: SlurmCluster, workspace: Path) -> Job:
    launch = Launch("training", "demo", SETTINGS, (), None, PurePosixPath(ROOT), PurePosixPath(workspace))
    path = workspace / "job.sbatch"
    path.write_text(slurm.render(load_settings("demo", SETTINGS, {}), launch))
    done = cluster.run(["sbatch", "--parsable", str(path)])
    assert done.returncode == 0, done.stderr
    return Job(cluster, done.stdout.strip(), workspace)


def await_checkpoint(job: Job, run_dir: Path, deadline: float) -> None:
    while (checkpoints.latest_step(run_dir / "checkpoints") or 0) < 1:
        assert job.cluster.state(job.id) in ("PENDING", "CONFIGURING", "RUNNING"), job.output
        assert time.monotonic() < deadline, job.output
        time.sleep(1)


def metrics_of(path: Path) -> dict[int, dict[str, float]]:
    """By step."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["data"] for line in lines}


def test_training_uses_both_nodes_and_goes_on_after_a_requeue(cluster: SlurmCluster, tmp_path: Path) -> None:
    job, run_dir = submitted(cluster, tmp_path), tmp_path / "runs" / "training"
    deadline = time.monotonic() + 2100
    try:
        await_checkpoint(job, run_dir, deadline)
        trains = {
            name: any("ray::WorkerDict" in line for line in cluster.processes_of(name).values()) for name in NODES
        }
        cluster.run(["scancel", "--signal=USR1", "--batch", job.id])
        left = deadline - time.monotonic()
        assert job.await_state("COMPLETED", "FAILED", "CANCELLED", seconds=left) == "COMPLETED", job.output
    finally:
        cluster.run(["scancel", job.id])
        job.await_nothing_left(seconds=60)

    assert int(cluster.field(job.id, "Restarts")) >= 1
    assert "ray: 2 of 2 nodes have joined (10.77.0.1, 10.77.0.2)" in job.output
    saved = sorted(path.name for path in (run_dir / "checkpoints" / f"global_step_{STEPS}" / "actor").glob("model_*"))
    assert saved == ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"]
    assert trains == {"node1": True, "node2": True}, "each node had one of verl's two workers"
    first, second = (metrics_of(run_dir / "metrics" / f"attempt-{number}.jsonl") for number in (1, 2))
    assert max(first) < STEPS
    assert max(second) == STEPS
    assert min(step for step in second if step > 0) > 1, "it went on from a checkpoint"
    assert second[STEPS]["actor/grad_norm"] > 0
    assert (run_dir / "report.html").exists()
