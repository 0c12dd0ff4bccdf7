"""Real Ray in the rendered job on a real Slurm: two nodes join, both work, and nothing of it stays."""

import pytest
from conftest import Job, Submit
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

BOTH_WORK = """\
import os, sys
import ray

ray.init(address=os.environ["AGENTIC_RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_gpus=1)
def where():
    import socket, time
    time.sleep(0.5)
    return socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")

print("payload ran on", sorted(ray.get([where.remote(), where.remote()])), flush=True)
sys.exit(0 if os.environ.get("SLURM_RESTART_COUNT") else 75)
"""

STAYS = """\
import os, time
import ray

ray.init(address=os.environ["AGENTIC_RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_gpus=1)
def stay():
    import time
    time.sleep(600)

started = [stay.remote(), stay.remote()]
print("payload waits", flush=True)
ray.get(started)
"""


def has_ray(job: Job) -> bool:
    return any("raylet" in words for words in job.left())


def test_two_nodes_join_and_work_in_each_start_of_the_job(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit(BOTH_WORK, ray=True)
    assert job.await_state("COMPLETED", "FAILED", seconds=240) == "COMPLETED", job.output
    assert job.output.count("payload ran on [('node1', 'eth0'), ('node2', 'eth0')]") == 2, job.output
    assert "ray: 2 of 2 nodes have joined (10.77.0.1, 10.77.0.2)" in job.output
    assert cluster.field(job.id, "Restarts") == "1"
    job.await_nothing_left()


@pytest.mark.parametrize("how", [[], ["--signal=KILL", "--batch"]], ids=["cancelled", "the script is killed"])
def test_nothing_of_ray_is_left_however_the_job_ends(submit: Submit, cluster: SlurmCluster, how: list[str]) -> None:
    job = submit(STAYS, ray=True)
    job.await_output("payload waits", seconds=120)
    assert has_ray(job)
    cluster.run(["scancel", *how, job.id])
    job.await_state("CANCELLED", "FAILED", seconds=60)
    job.await_nothing_left(seconds=30)
