"""Whole trials of agents that leave something running, which would write the grade: real Harbor, real bubblewrap."""

import shutil

import pytest

from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import EnvironmentSpec, TrialRequest, TrialRunner, sandboxed_runner
from agentic.sandbox.settings import BubblewrapSandbox

# Harbor warns about its own use of a property that it will remove.
pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

SLOW_TESTS = """\
#!/bin/sh
sleep 0.5
echo 0 > /logs/verifier/reward.txt
sleep 0.5
"""
REWARD = 'echo "{\\"reward\\": 1}" > /logs/verifier/reward.json'
TESTS = 'printf "#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n" > /tests/test.sh'
DAEMONS = {
    "writes the reward": f"(while :; do {REWARD}; sleep 0.01; done) > /dev/null 2>&1 &",
    "writes the tests": f"(while :; do {TESTS}; sleep 0.01; done) > /dev/null 2>&1 &",
    "is detached": f"setsid nohup sh -c 'while :; do {REWARD}; sleep 0.01; done' > /dev/null 2>&1 &",
    "is a command out of time": f"while :; do {REWARD}; sleep 0.01; done",
}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.parametrize("limits", ["cgroup", "none"])
@pytest.mark.parametrize("daemon", DAEMONS)
async def test_a_process_that_the_agent_left_running_writes_no_reward(tmp_path, build_tasks, daemon, limits):
    sandbox = BubblewrapSandbox(memory_mb=128, scratch_mb=16, limits=limits)
    (task,) = await build_tasks(tmp_path, sandbox, "calc")
    (task / "tests" / "test.sh").write_text(SLOW_TESTS)
    runner = sandboxed_runner("daemons", tmp_path / "images", sandbox, 1)
    try:
        result = await runner.run(request(tmp_path, task, EnvironmentSpec(), DAEMONS[daemon]))
    finally:
        await runner.close()
    assert result.facts.rewards == {"reward": 0.0}, result.facts


async def test_an_environment_that_cannot_end_processes_grades_nothing(tmp_path, task_dir):
    unable = EnvironmentSpec(import_path="unending_environment:UnendingEnvironment")
    result = await TrialRunner(1).run(request(tmp_path, task_dir, unable, "true"))
    assert result.facts.rewards is None
    assert "cannot end an agent's processes and start a fresh sandbox" in result.facts.message


def request(tmp_path, task, environment, *commands):
    return TrialRequest(
        trial_id="trial-1",
        task_dir=str(task),
        trials_dir=str(tmp_path / "trials"),
        agent=ScriptedAgentSettings(commands=commands),
        base_url="http://127.0.0.1:9/v1",
        api_key="secret-key",
        environment=environment,
        deadline_seconds=22,
        start_seconds=10,
        grading_seconds=10,
    )
