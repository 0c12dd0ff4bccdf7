"""The rendered job on a real Slurm of two nodes: starts, ends, comes back, and leaves nothing, whatever happens.

Where a test is about the job, a few lines stand in for Ray; `test_slurm_ray.py` has the real one.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GOES_ON, ROOT, Submit
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]


def test_a_run_that_is_done_ends_the_job_well(submit: Submit) -> None:
    job = submit("echo payload sees $AGENTIC_RAY_ADDRESS and $AGENTIC_WORKSPACE")
    assert job.await_state("COMPLETED", "FAILED") == "COMPLETED", job.output
    assert f"payload sees 10.77.0.1:6379 and {job.workspace}" in job.output


def test_all_output_is_in_the_runs_folder_too(submit: Submit) -> None:
    job = submit("echo to the one; echo to the other >&2")
    job.await_state("COMPLETED")
    log = (job.workspace / "runs/job-0/logs/verl_demo_slurm.log").read_text()
    assert "to the one\n" in log
    assert "to the other\n" in log
    assert "slurm: run job-0 ends with exit code 0\n" in log
    assert set(log.splitlines()) <= set(job.output.splitlines())


def test_the_runs_token_is_its_users_alone(submit: Submit) -> None:
    job = submit("test ${#RAY_AUTH_TOKEN_PATH} -gt 0 && cat $RAY_AUTH_TOKEN_PATH | wc -c")
    job.await_state("COMPLETED")
    assert (job.workspace / "runs/job-0/ray.token").stat().st_mode & 0o777 == 0o600
    assert "\n64\n" in job.output


def test_what_a_failed_start_of_ray_left_behind_is_ended_too(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit(
        "(AGENTIC_RAY_OF_JOB=$SLURM_JOB_ID setsid setsid -f sleep 314 >/dev/null 2>&1 </dev/null); echo started"
    )
    assert job.await_state("COMPLETED", "FAILED") == "COMPLETED", job.output
    assert not [words for words in cluster.processes_of("node1").values() if "sleep 314" in words]


def test_a_run_that_cannot_go_on_fails_with_its_own_exit_code(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit("exit 78")
    assert job.await_state("COMPLETED", "FAILED") == "FAILED"
    assert cluster.field(job.id, "ExitCode") == "78:0"
    assert cluster.field(job.id, "Restarts") == "0"


def test_a_passing_failure_puts_the_job_back_and_the_next_start_goes_on(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit("[ -z $SLURM_RESTART_COUNT ] && exit 75; echo start ${SLURM_RESTART_COUNT} goes on")
    assert job.await_state("COMPLETED", "FAILED") == "COMPLETED", job.output
    assert cluster.field(job.id, "Restarts") == "1"
    assert "goes back into the queue, start 1 of at most 21 is over" in job.output
    assert "start 1 goes on" in job.output


def test_it_does_not_come_back_for_ever(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit("exit 75", "slurm.restarts=1")
    assert job.await_state("FAILED") == "FAILED"
    assert (cluster.field(job.id, "Restarts"), cluster.field(job.id, "ExitCode")) == ("1", "75:0")
    assert "has been started 2 times: submit it again to go on" in job.output


def test_told_that_time_is_nearly_over_it_ends_in_good_order_and_goes_on_later(
    submit: Submit, cluster: SlurmCluster
) -> None:
    job = submit(GOES_ON)
    job.await_output("payload starts")
    cluster.run(["scancel", "--signal=USR1", "--batch", job.id])
    assert job.await_state("COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", job.output
    assert job.output.count("payload ends in good order") == 1
    assert job.output.count("payload starts") == 2


def test_preempted_it_ends_in_good_order_and_goes_on_when_there_is_room(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit(GOES_ON)
    job.await_output("payload starts")
    urgent = submit("sleep 3", options=("--partition=high", "--exclusive"))
    assert urgent.await_state("COMPLETED") == "COMPLETED"
    assert job.await_state("COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", job.output
    assert job.output.count("payload ends in good order") == 1
    assert job.output.count("payload starts") == 2


def test_cancelled_it_ends_in_good_order_and_does_not_come_back(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit(GOES_ON)
    job.await_output("payload starts")
    cluster.run(["scancel", job.id])
    assert job.await_state("COMPLETED", "FAILED", "CANCELLED") == "CANCELLED"
    job.await_nothing_left()
    assert job.output.count("payload ends in good order") == 1
    assert job.output.count("payload starts") == 1


def test_cancelled_as_its_nodes_are_lost_it_does_not_come_back(submit: Submit, cluster: SlurmCluster) -> None:
    """As where Ray's steps hear of it first, and the script takes their end for a loss."""
    job = submit(GOES_ON.replace("; exit 143", "; sleep 1; exit 143"))
    job.await_output("payload starts")
    cluster.end_ray("node2")
    job.await_output("a Ray node was lost while the run went on")
    cluster.run(["scancel", job.id])
    assert job.await_state("COMPLETED", "FAILED", "CANCELLED") == "CANCELLED", job.output
    assert job.output.count("payload starts") == 1
    assert "Slurm has ended the job meanwhile" in job.output


def test_a_lost_node_ends_the_start_and_the_next_one_goes_on(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit(GOES_ON)
    job.await_output("payload starts")
    cluster.end_ray("node2")
    assert job.await_state("COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", job.output
    assert "a Ray node was lost while the run went on" in job.output
    assert job.output.count("payload starts") == 2


def test_a_port_that_another_job_has_is_one_line(submit: Submit, cluster: SlurmCluster) -> None:
    code = (
        "import signal, socket; server = socket.create_server(('10.77.0.1', 7777)); "
        "signal.alarm(30); print('listens', flush=True); signal.pause()"
    )
    words = cluster.on_node([sys.executable, "-c", code], "node1")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listens\n"
        job = submit("true", "slurm.ray_port=7777", "slurm.restarts=0")
        assert job.await_state("COMPLETED", "FAILED") == "FAILED"
        other.kill()
    assert cluster.field(job.id, "ExitCode") == "75:0"
    assert "slurm: something answers at 10.77.0.1:7777 already: set slurm.ray_port" in job.output


def test_an_interface_that_is_not_there_is_one_line_that_names_those_that_are(
    submit: Submit, cluster: SlurmCluster
) -> None:
    job = submit("true", "slurm.interface=eth9")
    assert job.await_state("COMPLETED", "FAILED") == "FAILED"
    assert cluster.field(job.id, "ExitCode") == "78:0"
    (line,) = [line for line in job.output.splitlines() if "eth9" in line]
    assert line.startswith("slurm: interface eth9 has no address on node1: there are")
    assert "eth0 10.77.0.1/24" in line
    assert "ib0 10.78.0.1/24" in line


@pytest.mark.parametrize(
    ("choice", "head", "interface"),
    [
        ([], "10.77.0.1:6379", "eth0"),
        (["slurm.interface=ib0"], "10.78.0.1:6379", "ib0"),
        (["slurm.interface=v6"], "[fd79::1]:6379", "v6"),
    ],
)
def test_ray_takes_the_chosen_network_on_every_node_ipv4_first(
    submit: Submit, choice: list[str], head: str, interface: str
) -> None:
    job = submit("true", *choice)
    assert job.await_state("COMPLETED", "FAILED") == "COMPLETED", job.output
    assert f"Ray's head is {head}" in job.output
    second = head.rpartition(":")[0].strip("[]")[:-1] + "2"
    assert f"node2 has address {second} on {interface}" in job.output


def test_tensors_may_go_over_other_networks_than_ray(submit: Submit) -> None:
    job = submit("true", 'slurm.data_interfaces=["ib0", "v6"]')
    job.await_state("COMPLETED")
    assert "node2 has address 10.77.0.2 on ib0,v6" in job.output


APPTAINER = """\
#!/usr/bin/env bash
# Stands in for Apptainer: notes what it is asked for, and runs the command where it is.
printf '%s %s\\n' "$(hostname)" "$*" >>"$AGENTIC_WORKSPACE/apptainer.words"
[ "$1" = exec ] || exit 255
shift
while [[ $1 == --* ]]; do shift; done
IMAGE=$1 exec "${@:2}"
"""


def test_with_an_image_ray_on_each_node_the_wait_and_the_run_are_in_it(submit: Submit, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER)
    program.chmod(0o755)
    setup = json.dumps([f"export PATH={program.parent}:$PATH"])
    job = submit('echo "payload is in $IMAGE"', "slurm.image=trainer.sif", f"slurm.setup={setup}")
    assert job.await_state("COMPLETED", "FAILED") == "COMPLETED", job.output
    assert "payload is in trainer.sif" in job.output
    asked = (tmp_path / "apptainer.words").read_text().splitlines()
    inside = f"exec --bind={ROOT} --bind={tmp_path} --pwd={ROOT} trainer.sif"
    assert all(inside in line for line in asked)
    ray = sorted(line.split()[0] for line in asked if "ray.scripts.scripts start" in line)
    assert (ray, sum("agentic.training.ray_nodes" in line for line in asked)) == (["node1", "node2"], 1)
    job.await_nothing_left()


def test_an_image_without_apptainer_is_one_line_before_anything_starts(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit("true", "slurm.image=trainer.sif")
    assert job.await_state("COMPLETED", "FAILED") == "FAILED"
    assert cluster.field(job.id, "ExitCode") == "78:0"
    assert "slurm: there is no apptainer on node1: load its module by slurm.setup" in job.output


def test_a_project_without_its_environment_is_one_line(submit: Submit, cluster: SlurmCluster) -> None:
    job = submit("true", "slurm.python=/nowhere/python")
    assert job.await_state("COMPLETED", "FAILED") == "FAILED"
    assert cluster.field(job.id, "ExitCode") == "78:0"
    assert "slurm: there is no /nowhere/python on node1: run make setup" in job.output
