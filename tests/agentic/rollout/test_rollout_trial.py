import asyncio
import logging
import time

import pytest
from pydantic import ValidationError

from agentic.rollout.settings import ScriptedAgentSettings, ShellAgentSettings
from agentic.rollout.trial import TrialRequest, TrialRunner

# Harbor warns about its own use of a property that it will remove.
pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"


@pytest.fixture
def request_for(tmp_path, task_dir, environment):
    def make(*commands, trial_id="trial-1", keep="all", environment_kwargs=None, **changes):
        values = {
            "trial_id": trial_id,
            "task_dir": str(task_dir),
            "trials_dir": str(tmp_path / "trials"),
            "agent": ScriptedAgentSettings(commands=commands),
            "base_url": "http://127.0.0.1:9/v1",
            "api_key": "secret-key",
            "environment": environment(**(environment_kwargs or {})),
            "deadline_seconds": 30,
            "start_seconds": 5,
            "grading_seconds": 10,
            "keep": keep,
        }
        return TrialRequest(**{**values, **changes})

    return make


async def test_a_trial_that_fixes_the_code_is_graded_by_the_tasks_tests(request_for):
    result = await TrialRunner(1).run(request_for("cat calc.txt", FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert result.facts.exception is None
    assert result.turns == 2
    assert 0 < result.seconds.agent <= result.seconds.total
    assert 0 < result.seconds.grade <= result.seconds.total


async def test_a_trial_that_changes_nothing_is_graded_zero(request_for):
    assert (await TrialRunner(1).run(request_for())).facts.rewards == {"reward": 0.0}


async def test_an_agent_out_of_time_is_stopped_and_its_work_is_graded(request_for):
    request = request_for(FIX, "sleep 30", deadline_seconds=16.5)
    result = await TrialRunner(1).run(request)
    assert result.facts.exception == "AgentTimeoutError"
    assert result.facts.rewards == {"reward": 1.0}
    assert result.seconds.agent == pytest.approx(1.5, abs=1.0)


@pytest.mark.parametrize("lost_at", ["cat", "test.sh"], ids=["agent", "verifier"])
async def test_a_lost_sandbox_is_a_fact_and_never_a_reward(request_for, lost_at):
    result = await TrialRunner(1).run(request_for("cat calc.txt", environment_kwargs={"lose_at_command": lost_at}))
    assert result.facts.rewards is None
    assert result.facts.exception == "SandboxGone"
    assert "lost at" in result.facts.message


async def test_a_verifier_without_a_verdict_is_a_fact(request_for, tmp_path, write_task):
    silent = write_task(tmp_path / "tasks" / "silent", test_sh="#!/bin/sh\nexit 1\n")
    result = await TrialRunner(1).run(request_for(task_dir=str(silent)))
    assert result.facts.rewards is None
    assert result.facts.exception == "RewardFileNotFoundError"


async def test_what_the_agent_planted_for_the_verifier_is_gone_when_it_runs(request_for, tmp_path, write_task):
    script = """#!/bin/sh\n[ -e "$ROOT/tests/planted" ] || echo 0 > "$ROOT/logs/verifier/reward.txt"\n"""
    task = str(write_task(tmp_path / "tasks" / "planted", test_sh=script))
    plant = ("touch /tests/planted", "echo 1 > /logs/verifier/reward.txt", "echo 1 > /logs/verifier/reward.json")
    assert (await TrialRunner(1).run(request_for(*plant, task_dir=task))).facts.rewards == {"reward": 0.0}


async def test_the_verifier_may_report_more_than_the_reward_and_its_output_is_kept(request_for, tmp_path, write_task):
    report = """echo '{"reward": 1, "patch_lines": 2}' > "$ROOT/logs/verifier/reward.json"\n"""
    task = write_task(tmp_path / "tasks" / "measured", test_sh=f'#!/bin/sh\necho "3 passed"\n{report}')
    (task / "tests" / "test.sh").chmod(0o644)
    result = await TrialRunner(1).run(request_for(task_dir=str(task)))
    assert result.facts.rewards == {"reward": 1.0, "patch_lines": 2.0}
    assert (tmp_path / "trials" / "trial-1" / "verifier" / "test-stdout.txt").read_text() == "3 passed\n"


@pytest.mark.parametrize(
    ("written", "exception"),
    [("", "RewardFileEmptyError"), ("passed", "VerifierOutputParseError"), ("nan", "VerifierOutputParseError")],
)
async def test_a_reward_that_is_no_number_is_a_fact(request_for, tmp_path, write_task, written, exception):
    script = f"""#!/bin/sh\nprintf '{written}' > "$ROOT/logs/verifier/reward.txt"\n"""
    task = write_task(tmp_path / "tasks" / "odd", test_sh=script)
    result = await TrialRunner(1).run(request_for(task_dir=str(task)))
    assert (result.facts.rewards, result.facts.exception) == (None, exception)


async def test_a_task_that_is_not_there_is_a_fact(request_for, tmp_path):
    result = await TrialRunner(1).run(request_for(task_dir=str(tmp_path / "nowhere")))
    assert result.facts.rewards is None
    assert result.facts.exception is not None


async def test_the_whole_trials_deadline_covers_what_harbors_timeouts_do_not(request_for):
    request = request_for(environment_kwargs={"start_seconds": 30}, deadline_seconds=1.0, start_seconds=0.4)
    request = request.model_copy(update={"grading_seconds": 0.4})
    began = time.monotonic()
    result = await TrialRunner(1).run(request)
    assert result.facts.deadline_passed
    assert result.facts.rewards is None
    assert time.monotonic() - began < 5


async def test_a_sandbox_that_does_not_stop_is_given_up_and_said(request_for, caplog):
    runner = TrialRunner(1, cleanup_seconds=0.2)
    running = asyncio.create_task(runner.run(request_for("sleep 30", environment_kwargs={"stop_seconds": 1.0})))
    await asyncio.sleep(0.8)
    with caplog.at_level(logging.ERROR):
        await runner.cancel("trial-1")
        assert (await asyncio.wait_for(running, 0.7)).facts.exception == "CancelledError"
    assert "did not stop its sandbox" in caplog.text
    await asyncio.sleep(1.5)  # the double does stop in the end


async def test_cancelling_a_trial_ends_its_sandbox_and_is_a_fact(request_for):
    runner = TrialRunner(1)
    running = asyncio.create_task(runner.run(request_for("sleep 30")))
    await asyncio.sleep(1.0)
    await runner.cancel("trial-1")
    result = await asyncio.wait_for(running, 5)
    assert result.facts.exception == "CancelledError"
    assert result.facts.rewards is None
    await runner.cancel("trial-1")


async def test_cancelling_the_caller_cancels_the_trial(request_for):
    running = asyncio.create_task(TrialRunner(1).run(request_for("sleep 30")))
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_waiting_for_a_slot_does_not_use_up_the_deadline(request_for):
    runner = TrialRunner(1)
    first = request_for("sleep 2", trial_id="first", start_seconds=0.5, deadline_seconds=14)
    second = request_for(FIX, trial_id="second", start_seconds=0.5, deadline_seconds=12)
    results = await asyncio.gather(runner.run(first), runner.run(second))
    assert [result.facts.rewards for result in results] == [{"reward": 0.0}, {"reward": 1.0}]


async def test_the_same_trial_twice_at_once_is_refused(request_for):
    runner = TrialRunner(2)
    first = asyncio.create_task(runner.run(request_for("sleep 1")))
    await asyncio.sleep(0)
    assert (await runner.run(request_for())).facts.exception == "DuplicateTrial"
    assert (await first).facts.rewards == {"reward": 0.0}


@pytest.mark.parametrize(
    ("keep", "solved", "failed", "lost"),
    [
        ("none", False, False, False),
        ("infra", False, False, True),
        ("failed", False, True, True),
        ("all", True, True, True),
    ],
)
async def test_only_trials_that_are_asked_for_leave_a_folder(request_for, tmp_path, keep, solved, failed, lost):
    runner = TrialRunner(3)
    lost_kwargs = {"lose_at_command": "cat"}
    await asyncio.gather(
        runner.run(request_for(FIX, trial_id="solved", keep=keep)),
        runner.run(request_for(trial_id="failed", keep=keep)),
        runner.run(request_for("cat x", trial_id="lost", keep=keep, environment_kwargs=lost_kwargs)),
    )
    left = {name: (tmp_path / "trials" / name).exists() for name in ("solved", "failed", "lost")}
    assert left == {"solved": solved, "failed": failed, "lost": lost}


async def test_the_sessions_key_is_in_no_file_of_the_trial(request_for, tmp_path):
    agent = ShellAgentSettings(max_turns=1)
    result = await TrialRunner(1).run(request_for(agent=agent))
    assert result.facts.exception == "ModelUnavailableError"
    files = [path for path in (tmp_path / "trials").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if "secret-key" in path.read_text(errors="replace")]
    assert "secret-key" not in repr(request_for())


async def test_many_trials_leave_no_loggers_behind(request_for):
    runner = TrialRunner(4)
    await runner.run(request_for(trial_id="warm-up"))
    before = len(logging.Logger.manager.loggerDict)
    await asyncio.gather(*(runner.run(request_for(trial_id=f"t{number}")) for number in range(8)))
    assert len(logging.Logger.manager.loggerDict) == before


def test_a_trial_id_that_could_leave_its_folder_is_refused(request_for):
    with pytest.raises(ValidationError):
        request_for(trial_id="../up")
