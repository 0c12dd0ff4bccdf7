"""A real training in the head pod of a real RayCluster, by the steps as the workflow runs them, without the workflow.

The steps are processes of this machine with a pod's environment; the trainer, its rollouts and the sandboxes are pods.
The step is killed in the middle and run again; then the checkpoint is evaluated, and cleanup leaves nothing.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_space import Space, ray_space, wait

from agentic.rollout.records import Phase, read_records
from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.settings import PodSandbox
from agentic.tasks.prepare import prepare
from agentic.tasks.settings import MutationData
from agentic.training.audit import audit
from testbed.access import ClusterAccess
from workflows.settings import Settings, load_settings

pytestmark = [pytest.mark.cluster, pytest.mark.scale, pytest.mark.timeout(2400)]

REPOSITORY = Path(__file__).parents[2]
RUN_ID = "r"
BASE_IMAGE = "agentic/base:local"
SETTINGS = (
    "data.source=folder",
    "data.held_out_fraction=0.25",
    "model.demonstrations=200",
    "model.steps=20",
    "train.steps=3",
    "train.validate_every=3",
    "train.save_every=1",
    "train.prompts_per_step=4",
    "train.rollouts_per_prompt=4",
    "train.micro_batch_rollouts=16",
    # Of the node's memory, of which others take their part; vLLM refuses to start with less.
    "train.gpu_memory_utilization=0.1",
    "rollout.concurrency=16",
    "rollout.start_seconds=60",
    "rollout.grading_seconds=60",
    "rollout.deadline_seconds=240",
    "sandbox.provider=pod",
    f"sandbox.base_image={BASE_IMAGE}",
    "sandbox.memory_mb=256",
    "sandbox.request_memory_mb=32",
    "sandbox.request_cpus=0.01",
)


def tasks_in(folder: Path) -> Path:
    """Repair tasks that name an image and bring their files beside it."""
    prepare(MutationData(train=12, same_template=2, new_template=2), folder, lambda *_: None)
    for task in (folder / "tasks").iterdir():
        (task / "environment" / "Dockerfile").unlink()
        config = (task / "task.toml").read_text()
        image = f'docker_image = "{BASE_IMAGE}"\nworkdir = "/app"\n'
        has_section = "[environment]\n" in config
        made = config.replace("[environment]\n", f"[environment]\n{image}") if has_section else ""
        (task / "task.toml").write_text(made or f"{config}\n[environment]\n{image}")
    return folder / "tasks"


@dataclass(frozen=True)
class Run:
    """The steps of one run."""

    space: Space
    settings: Settings

    @property
    def run_dir(self) -> Path:
        return self.space.root / "runs" / RUN_ID

    def inputs(self, step: str, *sections: str, **more: Any) -> Path:
        given = {name: getattr(self.settings, name).model_dump(mode="json") for name in sections}
        path = self.space.root / f"{step}.json"
        path.write_text(json.dumps({"run_id": RUN_ID, **given, **more}))
        return path

    @contextmanager
    def started(self, step: str, inputs: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
        said = self.space.root / f"{step}.said"
        with said.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", f"steps.{step}", "--inputs", str(inputs)],
                cwd=REPOSITORY,
                env=os.environ
                | {
                    "AGENTIC_WORKSPACE": str(self.space.root),
                    "AGENTIC_TARGET": "argo",
                    "KUBECONFIG": str(self.space.account),
                },
                stdout=output,
                stderr=output,
            )
        try:
            yield process, said
        finally:
            process.kill()
            process.wait()

    def done(self, step: str, inputs: Path, seconds: float = 900) -> dict[str, Any]:
        """Its outputs."""
        with self.started(step, inputs) as (process, said):
            wait(lambda: process.poll() is not None, said, seconds)
            assert process.returncode == 0, said.read_text(errors="replace")[-6000:]
        outputs: dict[str, Any] = json.loads(said.read_text().splitlines()[-1])
        return outputs


@pytest.fixture
def run(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[Run]:
    tasks = tasks_in(tmp_path / "made")
    rules = sandbox_rules(PodSandbox())
    head = {"gpus": 0, "cpus": 1, "memory": "6Gi"}
    with ray_space(cluster, namespace, tmp_path, more_rules=rules, head=head) as space:
        settings = load_settings("demo", [*SETTINGS, f"data.path={tasks}"], {})
        yield Run(space, settings.model_copy(update={"cluster": space.settings}))


def test_a_training_outlives_its_step_and_leaves_what_people_look_for(run: Run) -> None:
    settings = run.settings
    data_dir, model_dir = f"datasets/{settings.data.name}", f"models/{settings.model.name}"
    run.done("download_data", run.inputs("download_data", "data"))
    run.done("download_model", run.inputs("download_model", "model", data_dir=data_dir))
    launched = run.done("launch_cluster", run.inputs("launch_cluster", "ray", "train", "rollout", "cluster"))
    assert launched["dashboard"] == f"http://raycluster-verl-head-svc.{run.space.namespace}.svc:8265"

    sections = ("train", "ray", "rollout", "sandbox", "cluster")
    inputs = run.inputs("train", *sections, data_dir=data_dir, model_dir=model_dir)
    with run.started("train", inputs) as (process, said):
        wait(lambda: "step 1/3" in said.read_text(errors="replace") or process.poll() is not None, said, 900)
        assert process.poll() is None, said.read_text(errors="replace")[-6000:]
        os.kill(process.pid, signal.SIGKILL)
    trained = run.done("train", inputs)
    assert trained["steps"] == 3
    text = said.read_text(errors="replace")
    assert "which is still going" in text
    assert text.count("submitted train-") == 1, "the second attempt trains nothing anew"

    log = run.space.log(run.space.head_pod())
    for step in (1, 2, 3):
        assert f"step {step}/3 · reward " in log, "the reward line of each step"
    assert "loading model" in log
    assert "loading data set" in log
    assert "resolve rate" in log
    trainer = (run.run_dir / "logs" / "trainer.log").read_text(errors="replace")
    assert trainer.strip().splitlines()[-1] in log, "and the trainer's own log"
    records = read_records(run.run_dir, Phase.TRAIN)
    assert len(records) == 3 * 16
    assert all(record.outcome.is_graded for record in records), "nothing was lost to infrastructure"
    assert audit(run.run_dir).holds

    evaluated = run.done("evaluate", run.inputs("evaluate", *sections, data_dir=data_dir, model_dir=model_dir))
    assert evaluated["after"] is not None
    cleaned = run.done("cleanup", run.inputs("cleanup", "sandbox", "cluster", status="Succeeded"))
    assert cleaned["clusters"] == 1
    left = run.space.cluster.get("rayclusters,pods,jobs", f"--namespace={run.space.namespace}")["items"]
    assert [one["metadata"]["name"] for one in left if not one["metadata"].get("deletionTimestamp")] == []
