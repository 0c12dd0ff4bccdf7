"""A job that runs into its time limit on a real Slurm: told so by Slurm itself, it comes back and goes on."""

import pytest
from conftest import GOES_ON, Submit
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def test_a_start_that_is_too_short_is_followed_by_another(submit: Submit, cluster: SlurmCluster) -> None:
    """Slurm looks at limits each 30 s, and so may say it up to that much earlier."""
    job = submit(GOES_ON, "slurm.time_limit=2", "slurm.warning_seconds=30")
    assert job.await_state("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", seconds=200) == "COMPLETED", job.output
    assert cluster.field(job.id, "Restarts") == "1"
    assert "the time is nearly over, or the job is preempted" in job.output
    assert job.output.count("payload ends in good order") == 1
    assert job.output.count("payload starts") == 2
