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


async def test_what_a_trial_does_to_its_tasks_configuration_the_next_one_does_not_see(config_for):
    known = KnownTasks()
    first = await known.make_trial(config_for("first"))
    before = first.task.config.model_dump()
    first.task.config.environment.cpus, first.task.config.verifier.env["A"] = 3, "b"
    second = await known.make_trial(config_for("second"))
    assert second.task.config.model_dump() == before
    assert second.task.config is not first.task.config


async def test_files_that_an_ignore_file_leaves_out_later_are_left_out(config_for, task_dir):
    known = KnownTasks()
    (task_dir / "tests" / "notes.txt").write_text("for people")
    tests = task_dir.resolve() / "tests"
    task = (await known.make_trial(config_for("before"))).task
    assert {str(path) for path in task.file_filter.select(tests).relative_paths} == {"notes.txt", "test.sh"}
    (task_dir / "tests" / ".harborignore").write_text("notes.txt\n")
    task = (await known.make_trial(config_for("after"))).task
    for _ in range(2):
        assert [str(path) for path in task.file_filter.select(tests).relative_paths] == ["test.sh"]
        with pytest.raises(ValueError, match="excluded"):
            task.file_filter.require_included(tests / "notes.txt")


async def test_only_the_latest_folders_are_kept(config_for, write_task, tmp_path):
    known = KnownTasks(most_folders=1)
    other = config_for("other").model_copy(update={"task": TaskConfig(path=write_task(tmp_path / "tasks" / "other"))})
    first, second = [(await known.make_trial(config_for(name))).task.known for name in ("first", "second")]
    await known.make_trial(other)
    third = (await known.make_trial(config_for("third"))).task.known
    assert (first is second, first is third) == (True, False)
