import asyncio

import process_environment
import pytest

from agentic.proxy import Sampling, ScriptedReply
from agentic.proxy.errors import UnknownSession
from agentic.rollout.export import training_rows
from agentic.rollout.outcomes import Outcome, TrialFacts
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, make_record, run_rollout
from agentic.rollout.settings import RewardSettings, RolloutSettings, ShellAgentSettings
from agentic.rollout.trial import TrialResult, TrialRunner

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

LOOK = "```bash\ncat calc.txt\n```"
FIX = "```bash\necho '1 + 2' > calc.txt\n```"
SUBMIT = "```bash\nsubmit\n```"


def settings(**changes):
    values = {
        "agent": ShellAgentSettings(max_turns=4, max_tokens=64),
        "deadline_seconds": 30,
        "start_seconds": 5,
        "grading_seconds": 10,
        "infra_backoff_seconds": 0.01,
    }
    return RolloutSettings(**{**values, **changes})


@pytest.fixture
def request_for(tmp_path, task_dir, environment):
    def make(**changes):
        environment_kwargs = changes.pop("environment_kwargs", {})
        values = {
            "rollout_id": "uid_0",
            "phase": Phase.TRAIN,
            "step": 3,
            "task": "calc",
            "split": "train",
            "task_dir": str(task_dir),
            "trials_dir": str(tmp_path / "trials"),
            "environment": environment(**environment_kwargs),
            "sampling": Sampling(temperature=1.0, max_tokens=64),
            "prompt_tokens": 200,
            "response_tokens": 600,
        }
        return RolloutRequest(**{**values, **changes})

    return make


async def roll_out(proxy, request, **changes):
    return await run_rollout(request, settings(**changes), proxy, TrialRunner(2))


async def test_a_policy_that_looks_fixes_and_submits_solves_the_task(serve, policy, request_for):
    async with serve(policy(LOOK, FIX, SUBMIT)) as proxy:
        result = await roll_out(proxy, request_for())
    assert (result.verdict.outcome, result.reward, result.attempt) == (Outcome.SOLVED, 1.0, 1)
    (row,) = training_rows(result)
    sampled = [token for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert len(sampled) == result.sealed.sampled_tokens == sum(len(text) + 1 for text in (LOOK, FIX, SUBMIT))
    record = make_record(result, (row.digest,))
    assert (record.calls, record.turns, record.policy_version_min, record.outcome) == (3, 3, 5, Outcome.SOLVED)


async def test_a_policy_that_submits_at_once_fails_with_a_graded_zero(serve, policy, request_for):
    async with serve(policy(SUBMIT)) as proxy:
        result = await roll_out(proxy, request_for())
    assert (result.verdict.outcome, result.reward) == (Outcome.FAILED, 0.0)


async def test_bonuses_are_for_training_only(serve, policy, request_for, write_task, tmp_path):
    task = str(write_task(tmp_path / "tasks" / "bonus"))
    bonus = RewardSettings(small_patch_bonus=0.1)
    async with serve(policy(FIX, SUBMIT)) as proxy:
        trained = await roll_out(proxy, request_for(task_dir=task), reward=bonus)
        validated = await roll_out(
            proxy, request_for(task_dir=task, rollout_id="uid_1", phase=Phase.VALIDATION), reward=bonus
        )
    assert (trained.reward, validated.reward) == (pytest.approx(1.1), 1.0)


async def test_a_spent_context_is_graded_zero_and_trains_what_was_sampled(serve, policy, request_for):
    async with serve(policy(LOOK, "x" * 60, "y" * 60, "z" * 60)) as proxy:
        result = await roll_out(proxy, request_for(response_tokens=120))
    assert (result.verdict.outcome, result.reward, result.attempt) == (Outcome.CONTEXT_OVERFLOW, 0.0, 1)
    (row,) = training_rows(result)
    assert 0 < len(row.response_ids) <= 120


async def test_a_prompt_that_never_fits_is_graded_and_trains_nothing(serve, policy, request_for):
    async with serve(policy(LOOK)) as proxy:
        result = await roll_out(proxy, request_for(prompt_tokens=8))
    assert (result.verdict.outcome, result.reward) == (Outcome.CONTEXT_OVERFLOW, 0.0)
    assert training_rows(result) == []


async def test_an_agent_out_of_time_is_graded_by_what_it_left(serve, policy, request_for):
    slow = "```bash\nsleep 30\n```"
    async with serve(policy(LOOK, slow)) as proxy:
        result = await roll_out(proxy, request_for(), deadline_seconds=17)
    assert (result.verdict.outcome, result.reward) == (Outcome.AGENT_TIMEOUT, 0.0)


async def test_a_sandbox_lost_once_is_retried_in_a_new_session(serve, policy, request_for, tmp_path):
    losses = tmp_path / "losses"
    losses.write_bytes(b"x")
    lost_once = {"lose_at_command": "cat calc.txt", "lose_times_file": str(losses)}
    async with serve(policy(LOOK, FIX, SUBMIT)) as proxy:
        result = await roll_out(proxy, request_for(environment_kwargs=lost_once))
    assert (result.verdict.outcome, result.attempt) == (Outcome.SOLVED, 2)
    assert result.lost == ("SandboxGone: lost at 'cat calc.txt'",)
    assert result.sealed.session_id == "uid_0-2"
    assert result.sealed.calls == 3, "what the lost attempt sampled is not in the new session"


async def test_an_infra_loss_that_stays_is_left_out_and_has_no_reward(serve, policy, request_for):
    async with serve(policy(LOOK, FIX, SUBMIT)) as proxy:
        result = await roll_out(proxy, request_for(environment_kwargs={"lose_at_command": "cat"}), infra_retries=1)
    assert (result.verdict.outcome, result.reward, result.attempt) == (Outcome.INFRA, None, 2)
    assert training_rows(result) == []
    record = make_record(result)
    assert record.infra_reason == "SandboxGone: lost at 'cat calc.txt'"
    assert len(record.lost) == 1


async def test_an_engine_that_fails_is_an_infra_loss(serve, policy, request_for):
    async with serve(policy(LOOK, ScriptedReply((1,), fail_after=0))) as proxy:
        result = await roll_out(proxy, request_for(), infra_retries=0)
    assert result.verdict.outcome is Outcome.INFRA
    assert "ModelUnavailableError" in (result.verdict.infra_reason or "")


async def test_an_engine_without_logprobs_loses_the_capture_and_so_the_rollout(serve, policy, request_for):
    async with serve(policy(ScriptedReply((1, 2, 258), logprobs=(-0.5, None, -0.5)), FIX, SUBMIT)) as proxy:
        result = await roll_out(proxy, request_for(), infra_retries=0)
    assert result.verdict.outcome is Outcome.INFRA
    assert "capture incomplete" in (result.verdict.infra_reason or "")


async def test_no_session_outlives_its_rollout(serve, policy, request_for):
    async with serve(policy(LOOK, FIX, SUBMIT)) as proxy:
        await roll_out(proxy, request_for())
        with pytest.raises(UnknownSession):
            await proxy.seal("uid_0-1")


async def test_cancelling_a_rollout_ends_trial_and_session(serve, policy, request_for):
    async with serve(policy("```bash\nsleep 30\n```")) as proxy:
        running = asyncio.create_task(roll_out(proxy, request_for()))
        await process_environment.a_sandbox_lives()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(UnknownSession):
            await proxy.seal("uid_0-1")


class DeadTrials:
    """Stands for a trial runner that loses everything."""

    async def run(self, request):
        return TrialResult(request.trial_id, TrialFacts(exception="RayActorError", message="died"))

    async def cancel(self, trial_id):
        pass


async def test_a_proxy_that_was_stopped_and_a_runner_that_died_are_infra_losses(serve, policy, request_for):
    async with serve(policy(SUBMIT)) as proxy:
        result = await run_rollout(request_for(), settings(infra_retries=1), proxy, DeadTrials())
    assert (result.verdict.outcome, result.attempt) == (Outcome.INFRA, 2)
    stopped = await run_rollout(request_for(), settings(infra_retries=0), proxy, TrialRunner(1))
    assert stopped.verdict.outcome is Outcome.INFRA
    assert stopped.verdict.infra_reason.startswith("proxy: ")
    assert stopped.trial is None
    assert make_record(stopped).session_digest is None
