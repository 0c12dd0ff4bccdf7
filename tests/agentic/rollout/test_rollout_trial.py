import asyncio
import logging
from unittest.mock import Mock

import process_environment
import pytest
from pydantic import ValidationError

from agentic.rollout.settings import ShellAgentSettings
from agentic.rollout.trial import TrialRunner

# Harbor warns about its own use of a property that it will remove.
pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"


async def test_what_the_agent_planted_for_the_verifier_is_gone_when_it_runs(trial_for, tmp_path, write_task):
    script = """#!/bin/sh\n[ -e "$ROOT/tests/planted" ] || echo 0 > "$ROOT/logs/verifier/reward.txt"\n"""
    task = str(write_task(tmp_path / "tasks" / "planted", test_sh=script))
    plant = ("touch /tests/planted", "echo 1 > /logs/verifier/reward.txt", "echo 1 > /logs/verifier/reward.json")
    assert (await TrialRunner(1).run(trial_for(*plant, task_dir=task))).facts.rewards == {"reward": 0.0}


async def test_the_verifier_may_report_more_than_the_reward_and_its_output_is_kept(trial_for, tmp_path, write_task):
    report = """echo '{"reward": 1, "patch_lines": 2}' > "$ROOT/logs/verifier/reward.json"\n"""
    task = write_task(tmp_path / "tasks" / "measured", test_sh=f'#!/bin/sh\necho "3 passed"\n{report}')
    (task / "tests" / "test.sh").chmod(0o644)
    result = await TrialRunner(1).run(trial_for(task_dir=str(task)))
    assert result.facts.rewards == {"reward": 1.0, "patch_lines": 2.0}
    assert (tmp_path / "trials" / "trial-1" / "verifier" / "test-stdout.txt").read_text() == "3 passed\n"


@pytest.mark.parametrize(
    ("written", "exception"),
    [("", "RewardFileEmptyError"), ("passed", "VerifierOutputParseError"), ("nan", "VerifierOutputParseError")],
)
async def test_a_reward_that_is_no_number_is_a_fact(trial_for, tmp_path, write_task, written, exception):
    script = f"""#!/bin/sh\nprintf '{written}' > "$ROOT/logs/verifier/reward.txt"\n"""
    task = write_task(tmp_path / "tasks" / "odd", test_sh=script)
    result = await TrialRunner(1).run(trial_for(task_dir=str(task)))
    assert (result.facts.rewards, result.facts.exception) == (None, exception)


async def test_what_cannot_be_read_of_a_trial_is_a_fact_about_it(trial_for, monkeypatch):
    monkeypatch.setattr("agentic.rollout.trial.read_report", Mock(side_effect=ValueError("no report")))
    result = await TrialRunner(1).run(trial_for(FIX))
    assert (result.facts.rewards, result.facts.exception, result.facts.message) == (None, "ValueError", "no report")


async def test_a_sandbox_that_does_not_stop_is_given_up_and_said(trial_for, caplog, gate):
    runner = TrialRunner(1, cleanup_seconds=0.2)
    running = asyncio.create_task(runner.run(trial_for(gate.command, environment_kwargs={"stop_seconds": 4.0})))
    await gate.begun()
    with caplog.at_level(logging.ERROR):
        await runner.cancel("trial-1")
        assert (await asyncio.wait_for(running, 3)).facts.exception == "CancelledError"
    assert "did not stop its sandbox" in caplog.text
    async with asyncio.timeout(20):  # The double does stop in the end.
        while process_environment.ProcessEnvironment.live:
            await asyncio.sleep(0.05)


async def test_the_sessions_key_is_in_no_file_of_the_trial(trial_for, tmp_path):
    agent = ShellAgentSettings(max_turns=1)
    result = await TrialRunner(1).run(trial_for(agent=agent))
    assert result.facts.exception == "ModelUnavailableError"
    files = [path for path in (tmp_path / "trials").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if "secret-key" in path.read_text(errors="replace")]
    assert "secret-key" not in repr(trial_for())


async def test_many_trials_leave_no_loggers_behind(trial_for):
    runner = TrialRunner(4)
    await runner.run(trial_for(trial_id="warm-up"))
    before = len(logging.Logger.manager.loggerDict)
    await asyncio.gather(*(runner.run(trial_for(trial_id=f"t{number}")) for number in range(8)))
    assert len(logging.Logger.manager.loggerDict) == before


def test_a_trial_id_that_could_leave_its_folder_is_refused(trial_for):
    with pytest.raises(ValidationError):
        trial_for(trial_id="../up")
