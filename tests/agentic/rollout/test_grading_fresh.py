"""Grading in a fresh sandbox, as whole trials: what is done again when one is lost, and what a task may say of it."""

import shutil

import pytest

from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import TrialRequest, TrialRunner

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"


@pytest.fixture
def trial(tmp_path, task_dir, environment):
    async def run(*commands, task=task_dir, **kwargs):
        request = TrialRequest(
            trial_id="trial-1",
            task_dir=str(task),
            trials_dir=str(tmp_path / "trials"),
            agent=ScriptedAgentSettings(commands=commands),
            base_url="http://127.0.0.1:9/v1",
            api_key="secret-key",
            environment=environment(**kwargs),
            deadline_seconds=40,
            start_seconds=5,
            grading_seconds=20,
            keep="all",
        )
        return await TrialRunner(1).run(request)

    return run


@pytest.mark.parametrize(("losses", "is_graded"), [(1, True), (2, True), (3, False)])
async def test_a_fresh_sandbox_that_is_lost_is_replaced_and_the_agent_not_run_again(trial, tmp_path, losses, is_graded):
    (tmp_path / "losses").write_bytes(b"x" * losses)
    count = f"echo once >> {tmp_path}/agent-runs"
    lost = {"lose_at_command": "--transform", "lose_times_file": str(tmp_path / "losses")}
    result = await trial(count, FIX, **lost)
    assert (tmp_path / "agent-runs").read_text() == "once\n"
    if is_graded:
        assert result.facts.rewards == {"reward": 1.0}
        assert len(result.grading.lost) == losses
        assert all("SandboxGone" in line for line in result.grading.lost)
    else:
        assert (result.facts.rewards, result.facts.exception) == (None, "SandboxGone")


async def test_the_trials_folder_says_what_was_graded(trial, tmp_path):
    result = await trial(FIX, "mkdir tests && echo pass > tests/test_it.py")
    folder = tmp_path / "trials" / "trial-1" / "verifier"
    assert "-1 - 2\n+1 + 2\n" in (folder / "diff.patch").read_text()
    assert "test_it" not in (folder / "diff.patch").read_text()
    assert (result.grading.mode, result.grading.changed) == ("fresh", ("calc.txt",))
    assert set(result.grading.undone) == {"tests/test_it.py"}
    assert result.grading.patch_lines == 2
    assert result.grading.tests_seconds > 0
    assert "tests/test_it.py" in (folder / "grading.json").read_text()


async def test_a_task_may_protect_more_and_allow_what_is_protected(trial, task_dir):
    with (task_dir / "task.toml").open("a") as file:
        file.write('[metadata.grading]\nprotected = ["calc.txt"]\nallowed = ["tests/**"]\n')
    result = await trial(FIX, "mkdir tests && echo pass > tests/test_it.py")
    assert result.facts.rewards == {"reward": 0.0}
    assert (result.grading.undone, result.grading.changed) == (("calc.txt",), ("tests/test_it.py",))


async def test_a_task_that_is_no_folder_is_graded_in_place_and_the_reason_is_kept(trial, task_dir):
    with (task_dir / "task.toml").open("a") as file:
        file.write('[metadata.grading]\nmode = "in-place"\nreason = "the result is a running service"\n')
    result = await trial(FIX)
    assert result.facts.rewards == {"reward": 1.0}
    assert (result.grading.mode, result.grading.reason) == ("in-place", "the result is a running service")


async def test_tests_that_write_no_reward_only_with_the_agents_changes_are_its_failure(trial, task_dir):
    script = '#!/bin/sh\n[ -e "$ROOT/testbed/planted" ] || echo 0 > "$ROOT/logs/verifier/reward.txt"\n'
    (task_dir / "tests" / "test.sh").write_text(script)
    result = await trial("touch planted")
    assert result.facts.rewards == {"reward": 0.0}
    assert "without them they do" in result.grading.reason


def with_steps(task_dir, policy=""):
    """A task of two steps, each with the tests of the whole one."""
    config = (task_dir / "task.toml").read_text()
    (task_dir / "task.toml").write_text(f'{config}\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n{policy}')
    for name in ("one", "two"):
        shutil.copytree(task_dir / "tests", task_dir / "steps" / name / "tests")
        shutil.copy(task_dir / "instruction.md", task_dir / "steps" / name)


async def test_a_task_of_several_steps_is_refused_by_name_unless_it_says_that_it_is_graded_in_place(trial, task_dir):
    with_steps(task_dir)
    result = await trial(FIX)
    assert (result.facts.rewards, result.facts.exception) == (None, "GradingSetupError")
    assert 'metadata.grading.mode = "in-place"' in result.facts.message


async def test_a_task_of_several_steps_that_says_so_is_graded_step_by_step_in_place(trial, task_dir):
    with_steps(task_dir, '[metadata.grading]\nmode = "in-place"\nreason = "each step goes on from the last"\n')
    result = await trial(FIX)
    assert (result.facts.rewards, result.facts.exception) == ({"reward": 1.0}, None)
