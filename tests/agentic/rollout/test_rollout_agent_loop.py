"""The agent loop as verl drives it: real Ray actors, proxy, trials and sandboxes; only verl's servers are faked."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.rollout.agent_loop_config import CONFIG_VARIABLE, RolloutJob, load_job, phase_of
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, read_records
from agentic.rollout.settings import InsideShellAgentSettings, RolloutSettings, ShellAgentSettings
from agentic.sandbox.providers import open_store
from agentic.sandbox.settings import BubblewrapSandbox

SANDBOX = BubblewrapSandbox(memory_mb=128, scratch_mb=16)
DRIVER = Path(__file__).with_name("drive_agent_loop.py")
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def job(tmp_path, model_dir):
    return RolloutJob(
        run_id="run-1",
        run_dir=tmp_path / "run",
        data_dir=tmp_path / "data",
        store_dir=tmp_path / "images",
        model_dir=model_dir,
        rollout=RolloutSettings(agent=ShellAgentSettings(max_turns=4, max_tokens=64), infra_retries=0),
        sandbox=SANDBOX,
        max_prompt_tokens=400,
        max_response_tokens=800,
    )


@pytest.mark.e2e  # Ray, verl and two actors import for half a minute of CPU
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("agent", [ShellAgentSettings, InsideShellAgentSettings])
def test_verl_gets_the_tokens_that_were_sampled_and_nothing_of_a_loss(job, agent, write_task, tmp_path):
    rollout = job.rollout.model_copy(update={"agent": agent(max_turns=4, max_tokens=64)})
    job = job.model_copy(update={"rollout": rollout})
    task = write_task(job.data_dir / "tasks" / "calc")
    dockerfile = task / "environment" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("FROM base", "FROM agentic/base:local"))
    unbuilt = write_task(job.data_dir / "tasks" / "unbuilt")
    (unbuilt / "environment" / "calc.txt").write_text("another\n")
    asyncio.run(build_images([task], open_store(job.store_dir, SANDBOX), ImageSettings(), SANDBOX))
    config = tmp_path / "rollout.json"
    config.write_text(job.model_dump_json())

    environment = os.environ | {
        CONFIG_VARIABLE: str(config),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'doubles'}",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER)], env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    if job.proxy.unix_socket is not None:
        job.proxy.unix_socket.unlink(missing_ok=True)  # Ray kills its actors, so nobody else did
    assert done.returncode == 0, done.stderr[-3000:]
    driven = json.loads(done.stdout.splitlines()[-1])

    trained, lost = driven["calc"], driven["unbuilt"]
    before, after = driven["actors"]
    assert before == after, "the run's actors outlive a pause between two steps"
    assert lost == [], "an infra loss is no trajectory"
    (output,) = trained
    assert output["reward"] == 1.0
    assert output["steps"] == [7, 7]
    assert output["info"]["resolved"] == 1.0
    records = {record.task: record for record in read_records(job.run_dir, Phase.TRAIN)}
    assert records["calc"].outcome is Outcome.SOLVED
    assert records["calc"].rollout_id == "uid-calc_0"
    assert list(records["calc"].token_digests) == [output["digest"]], "tokens trained equal tokens sampled"
    assert records["unbuilt"].outcome is Outcome.INFRA
    (validated,) = read_records(job.run_dir, Phase.VALIDATION)
    assert (validated.split, validated.step) == ("held-out", 3)


def test_a_job_survives_its_file(job, tmp_path, monkeypatch):
    path = tmp_path / "rollout.json"
    path.write_text(job.model_dump_json())
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    assert load_job() == job


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("{}", "run_id: Field required"), ("not json", "Invalid JSON")],
)
def test_a_job_that_cannot_be_read_is_named(tmp_path, monkeypatch, content, message):
    path = tmp_path / "rollout.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    with pytest.raises(RolloutConfigError, match=message):
        load_job()


def test_the_proxy_of_a_job_has_a_socket_when_its_agent_runs_inside_and_every_process_knows_it(job):
    assert job.proxy.unix_socket is None
    rollout = job.rollout.model_copy(update={"agent": InsideShellAgentSettings()})
    inside = job.model_copy(update={"rollout": rollout})
    assert inside.proxy.unix_socket is not None
    assert RolloutJob.model_validate_json(inside.model_dump_json()).proxy == inside.proxy


def test_a_worker_without_a_job_is_told_the_variable(monkeypatch):
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    with pytest.raises(RolloutConfigError, match=CONFIG_VARIABLE):
        load_job()


def test_the_rows_split_tells_training_from_validation():
    assert phase_of("train") is Phase.TRAIN
    assert phase_of("same-template") is Phase.VALIDATION


def test_a_run_id_that_could_leave_its_folder_is_refused(job):
    with pytest.raises(ValidationError):
        RolloutJob.model_validate(job.model_dump() | {"run_id": "../up"})
