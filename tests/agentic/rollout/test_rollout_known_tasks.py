"""A trial made with digests that are known says the same as one that Harbor made by itself."""

import json

import pytest
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from agentic.rollout.known_tasks import KnownTasks

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")


@pytest.fixture
def config_for(tmp_path, task_dir):
    def make(name, commands=("true",)):
        return TrialConfig(
            task=TaskConfig(path=task_dir),
            trial_name=name,
            trials_dir=tmp_path / "trials",
            agent=AgentConfig(
                import_path="agentic.rollout.agents.scripted:ScriptedAgent",
                kwargs={"commands": list(commands), "command_timeout_seconds": 5.0},
            ),
            environment=EnvironmentConfig(import_path="process_environment:ProcessEnvironment"),
        )

    return make


async def written(trial):
    """What the trial says of its inputs."""
    result = await trial.run()
    return json.loads(trial.paths.lock_path.read_text()), result.task_checksum


async def test_lock_and_checksum_are_those_that_harbor_writes(config_for):
    known = KnownTasks()
    harbors = await written(await Trial.create(config_for("harbors")))

    for name in ("first", "second"):
        assert await written(await known.make_trial(config_for(name))) == harbors


async def test_a_changed_task_and_another_agent_are_seen(config_for, task_dir):
    known = KnownTasks()
    lock, checksum = await written(await known.make_trial(config_for("before")))
    other, _ = await written(await known.make_trial(config_for("other", commands=("false",))))
    (task_dir / "tests" / "test.sh").write_text("#!/bin/sh\nexit 0\n")
    changed, changed_checksum = await written(await known.make_trial(config_for("after")))

    assert other["task"] == lock["task"]
    assert other["agent"] != lock["agent"]
    assert changed["task"]["digest"] != lock["task"]["digest"]
    assert changed_checksum != checksum
