"""The reference solution's test time: measured once, kept in the run's folder, and never made of a lost trial."""

import asyncio

import pytest

from agentic.rollout.grading.reference import reference_seconds
from agentic.rollout.grading.report import GradingReport
from agentic.rollout.outcomes import TrialFacts
from agentic.rollout.settings import ShellAgentSettings
from agentic.rollout.trial import TrialRequest, TrialResult


class Trials:
    """Fakes the trials: each ends as told, and is remembered."""

    def __init__(self, *rewards):
        self._rewards = list(rewards)
        self.requests = []

    async def run(self, request):
        self.requests.append(request)
        await asyncio.sleep(0.01)
        reward = self._rewards.pop(0)
        facts = TrialFacts(rewards=None if reward is None else {"reward": reward}, exception=None)
        return TrialResult(request.trial_id, facts, grading=GradingReport(mode="fresh", tests_seconds=0.25))

    async def cancel(self, trial_id):
        """Nothing runs on."""


@pytest.fixture
def like(tmp_path, task_dir):
    (task_dir / "solution").mkdir()
    (task_dir / "solution" / "solve.sh").write_text("#!/bin/sh\necho '1 + 2' > calc.txt\n")
    return TrialRequest(
        trial_id="uid_0-1",
        task_dir=str(task_dir),
        trials_dir=str(tmp_path / "trials"),
        agent=ShellAgentSettings(),
        base_url="http://127.0.0.1:9/v1",
        api_key="the-sessions-key",
        deadline_seconds=40,
        start_seconds=5,
        grading_seconds=20,
    )


async def test_it_is_measured_once_by_a_trial_of_the_solution(tmp_path, like):
    trials = Trials(1.0)
    assert [await reference_seconds(like, trials, tmp_path / "reference") for _ in range(3)] == [0.25] * 3
    (request,) = trials.requests
    assert request.agent.kind == "scripted"
    assert "/solution/solve.sh" in request.agent.commands[-1]
    assert (request.api_key, request.environment) == ("none", like.environment)


async def test_a_lost_trial_says_nothing_and_is_tried_again(tmp_path, like):
    trials = Trials(None, 1.0)
    assert [await reference_seconds(like, trials, tmp_path / "reference") for _ in range(2)] == [0.25] * 2
    assert len({request.trial_id for request in trials.requests}) == 2


async def test_a_reference_that_stays_lost_is_none_for_every_rollout_of_the_run(tmp_path, like):
    trials = Trials(None, None, None, 1.0)
    assert [await reference_seconds(like, trials, tmp_path / "reference") for _ in range(2)] == [None] * 2
    assert len(trials.requests) == 3


async def test_rollouts_that_need_it_at_once_measure_it_once_and_agree(tmp_path, like):
    trials = Trials(None, 1.0)
    group = [like.model_copy(update={"trial_id": f"uid_{number}-1"}) for number in range(8)]
    found = await asyncio.gather(*(reference_seconds(each, trials, tmp_path / "reference") for each in group))
    assert (found, len(trials.requests)) == ([0.25] * 8, 2)


async def test_a_solution_that_is_not_resolved_or_not_there_gives_no_figure(tmp_path, like, task_dir):
    trials = Trials(0.0)
    assert [await reference_seconds(like, trials, tmp_path / "reference") for _ in range(2)] == [None, None]
    assert len(trials.requests) == 1
    (task_dir / "solution" / "solve.sh").unlink()
    assert await reference_seconds(like, Trials(), tmp_path / "elsewhere") is None
