"""The processes of a run, to be killed by test_rollout_cancellation.py: Ray's head, a trainer, its agent loop workers.

`head FOLDER` keeps Ray alive and writes its address; `train FOLDER JOB REQUEST` connects to it, has two workers ask the
run's trial runner for one trial each, and writes what they got. Each says its process id in a file of its name.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray

from agentic.rollout.actors import named_actor
from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.runner_actor import ActorTrials, TrialRunnerActor
from agentic.rollout.trial import TrialRequest

LEASE_SECONDS, BEAT_SECONDS = 6.0, 1.0


class Worker:
    """Stands where verl's agent loop worker does."""

    def __init__(self, job: RolloutJob, folder: Path, name: str) -> None:
        arguments = (job.run_id, job.store_dir, job.sandbox, 4, (), LEASE_SECONDS)
        self._trials = ActorTrials(
            named_actor(f"trial-runner-{job.run_id}", TrialRunnerActor, *arguments), BEAT_SECONDS
        )
        (folder / f"{name}.pid").write_text(str(os.getpid()))

    async def run(self, request: TrialRequest) -> dict:
        result = await self._trials.run(request)
        return {"rewards": result.facts.rewards, "exception": result.facts.exception, "message": result.facts.message}


def head(folder: Path) -> None:
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    (folder / "address").write_text(context.address_info["address"])
    sys.stdin.read()
    ray.shutdown()


def train(folder: Path, job: RolloutJob, request: TrialRequest) -> None:
    ray.init(address=(folder / "address").read_text(), log_to_driver=False)
    (folder / "trainer.pid").write_text(str(os.getpid()))
    make = ray.remote(Worker).options(num_cpus=0, max_concurrency=10)
    first = make.remote(job, folder, "first")
    ray.get(first.__ray_ready__.remote())  # It makes the runner, which lives no longer than its maker.
    second = make.remote(job, folder, "second")
    calls = {}
    for name, worker in (("first", first), ("second", second)):
        calls[name] = worker.run.remote(request.model_copy(update={"trial_id": f"{request.trial_id}-{name}"}))
    for name, call in calls.items():
        try:
            got = ray.get(call)
        except ray.exceptions.RayActorError as error:
            got = {"rewards": None, "exception": type(error).__name__}
        (folder / f"{name}.json").write_text(json.dumps(got))
    quick = request.model_copy(
        update={
            "trial_id": f"{request.trial_id}-after",
            "agent": request.agent.model_copy(update={"commands": ("true",)}),
        }
    )
    (folder / "after.json").write_text(json.dumps(ray.get(first.run.remote(quick))))
    time.sleep(600)


if __name__ == "__main__":
    where = Path(sys.argv[2])
    if sys.argv[1] == "head":
        head(where)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Tests that a shell runs behind itself inherit none.
        train(where, RolloutJob.model_validate_json(sys.argv[3]), TrialRequest.model_validate_json(sys.argv[4]))
