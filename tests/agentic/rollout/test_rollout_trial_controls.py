"""What every `TrialControl` promises, over each of them: a runner in this process, the run's runner behind its actor's
methods, and a server over real HTTP.

Of the actor, Ray itself is left out: calls go to the object, each as a task of its own that goes on when its caller is
cancelled, as a call of Ray's does. With Ray and kills: `test_rollout_cancellation.py`.
"""

import asyncio
import time
from types import SimpleNamespace

import process_environment
import pytest
from trial_server_rig import KEY, serving

from agentic.rollout.runner_actor import ActorTrials, TrialRunnerActor
from agentic.rollout.server.client import TrialServerControl
from agentic.rollout.settings import TrialServerSettings
from agentic.rollout.trial import TrialRunner
from agentic.sandbox.settings import UnsafeProcessSandbox

# Harbor warns about its own use of a property that it will remove.
pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"


class Handle:
    """Stands for Ray's handle of an actor in this process."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        method = getattr(self._actor, name)
        return SimpleNamespace(remote=lambda *values: asyncio.shield(asyncio.ensure_future(method(*values))))


@pytest.fixture(params=["here", "actor", "server"])
async def trials(request, tmp_path):
    """A control with one place for a running trial."""
    if request.param == "here":
        runner = TrialRunner(1)
        yield runner
        await runner.close()
        return
    if request.param == "actor":
        actor = TrialRunnerActor("run", tmp_path / "images", UnsafeProcessSandbox(), 1)
        yield ActorTrials(Handle(actor))
        await actor.close()
        return
    async with serving(tmp_path / "server", concurrency=1) as url:
        control = TrialServerControl(TrialServerSettings(url=url), KEY)
        yield control
        await control.close()


async def test_a_trial_that_fixes_the_code_is_graded_by_the_tasks_tests(trials, trial_for):
    result = await trials.run(trial_for("cat calc.txt", FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert result.facts.exception is None
    assert result.turns == 2
    assert 0 < result.seconds.agent <= result.seconds.total
    assert 0 < result.seconds.grade <= result.seconds.total


async def test_a_trial_that_changes_nothing_is_graded_zero(trials, trial_for):
    assert (await trials.run(trial_for())).facts.rewards == {"reward": 0.0}


async def test_an_agent_out_of_time_is_stopped_and_its_work_is_graded(trials, trial_for):
    request = trial_for(FIX, "sleep 30", deadline_seconds=16.5)
    result = await trials.run(request)
    assert result.facts.exception == "AgentTimeoutError"
    assert result.facts.rewards == {"reward": 1.0}
    assert result.seconds.agent == pytest.approx(1.5, abs=1.0)


@pytest.mark.parametrize("lost_at", ["cat", "test.sh"], ids=["agent", "verifier"])
async def test_a_lost_sandbox_is_a_fact_and_never_a_reward(trials, trial_for, lost_at):
    result = await trials.run(trial_for("cat calc.txt", environment_kwargs={"lose_at_command": lost_at}))
    assert result.facts.rewards is None
    assert result.facts.exception == "SandboxGone"
    assert "lost at" in result.facts.message


async def test_a_verifier_without_a_verdict_is_a_fact(trials, trial_for, tmp_path, write_task):
    silent = write_task(tmp_path / "tasks" / "silent", test_sh="#!/bin/sh\nexit 1\n")
    result = await trials.run(trial_for(task_dir=str(silent)))
    assert result.facts.rewards is None
    assert result.facts.exception == "RewardFileNotFoundError"


async def test_a_task_that_is_not_there_is_a_fact(trials, trial_for, tmp_path):
    result = await trials.run(trial_for(task_dir=str(tmp_path / "nowhere")))
    assert result.facts.rewards is None
    assert result.facts.exception is not None


async def test_the_whole_trials_deadline_covers_what_harbors_timeouts_do_not(trials, trial_for):
    request = trial_for(environment_kwargs={"start_seconds": 30}, deadline_seconds=1.0, start_seconds=0.4)
    request = request.model_copy(update={"grading_seconds": 0.4})
    began = time.monotonic()
    result = await trials.run(request)
    assert result.facts.deadline_passed
    assert result.facts.rewards is None
    assert time.monotonic() - began < 5


async def test_cancelling_a_trial_ends_its_sandbox_and_is_a_fact(trials, trial_for, gate):
    running = asyncio.create_task(trials.run(trial_for(gate.command)))
    await gate.begun()
    await trials.cancel("trial-1")
    result = await asyncio.wait_for(running, 10)
    assert result.facts.exception == "CancelledError"
    assert result.facts.rewards is None
    await trials.cancel("trial-1")
    await trials.cancel("never-heard-of")


@pytest.mark.parametrize(("keep", "is_left"), [("none", False), ("infra", True)])
async def test_a_cancelled_trial_leaves_its_folder_as_any_lost_one(trials, trial_for, tmp_path, keep, is_left):
    running = asyncio.create_task(trials.run(trial_for("sleep 30", keep=keep)))
    await process_environment.a_sandbox_lives()
    await trials.cancel("trial-1")
    await running
    assert (tmp_path / "trials" / "trial-1").exists() == is_left


async def test_cancelling_the_caller_cancels_the_trial(trials, trial_for, gate):
    running = asyncio.create_task(trials.run(trial_for(gate.command, environment_kwargs={"stop_seconds": 0.3})))
    await gate.begun()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not process_environment.ProcessEnvironment.live, "its sandbox ends before the caller goes on"


async def test_a_trial_that_waits_for_its_place_is_cancelled_without_ever_starting(trials, trial_for, tmp_path, gate):
    first = asyncio.create_task(trials.run(trial_for(gate.command, trial_id="first", keep="none")))
    await gate.begun()
    second = asyncio.create_task(trials.run(trial_for(FIX, trial_id="second")))
    while not second.done():  # Before it is known, cancelling it does nothing.
        await trials.cancel("second")
        await asyncio.wait({second}, timeout=0.1)
    assert (second.result().facts.exception, first.done()) == ("CancelledError", False)
    gate.open()
    assert (await first).facts.rewards == {"reward": 0.0}
    assert not (tmp_path / "trials").exists() or not list((tmp_path / "trials").iterdir())


async def test_waiting_for_a_slot_does_not_use_up_the_deadline(trials, trial_for, gate):
    first = asyncio.create_task(trials.run(trial_for(gate.command, trial_id="first")))
    await gate.begun()
    hasty = trial_for(FIX, trial_id="second", deadline_seconds=6.0, start_seconds=2.5, grading_seconds=2.5)
    second = asyncio.create_task(trials.run(hasty))
    await asyncio.sleep(6.2)
    gate.open()
    results = await asyncio.gather(first, second)
    assert [result.facts.rewards for result in results] == [{"reward": 0.0}, {"reward": 1.0}]


async def test_the_same_trial_twice_at_once_is_refused(trials, trial_for, gate):
    first = asyncio.create_task(trials.run(trial_for(gate.command)))
    await gate.begun()
    assert (await trials.run(trial_for())).facts.exception == "DuplicateTrial"
    gate.open()
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
async def test_only_trials_that_are_asked_for_leave_a_folder(trials, trial_for, tmp_path, keep, solved, failed, lost):
    lost_kwargs = {"lose_at_command": "cat"}
    await asyncio.gather(
        trials.run(trial_for(FIX, trial_id="solved", keep=keep)),
        trials.run(trial_for(trial_id="failed", keep=keep)),
        trials.run(trial_for("cat x", trial_id="lost", keep=keep, environment_kwargs=lost_kwargs)),
    )
    left = {name: (tmp_path / "trials" / name).exists() for name in ("solved", "failed", "lost")}
    assert left == {"solved": solved, "failed": failed, "lost": lost}
