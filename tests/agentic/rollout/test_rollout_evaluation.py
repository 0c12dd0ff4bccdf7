"""Whole evaluations: real proxy, real trials, real sandboxes by bubblewrap; only the policy is scripted."""

import shutil
from dataclasses import replace

import pytest
from trial_server_rig import KEY, serving

from agentic.proxy import ScriptedReply, make_renderer
from agentic.rollout.evaluation import Evaluation, EvaluationTask, evaluate
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase, read_records
from agentic.rollout.settings import RolloutSettings, ShellAgentSettings
from agentic.rollout.trial import EnvironmentSpec, sandboxed_runner
from agentic.sandbox.settings import BubblewrapSandbox

pytestmark = [
    pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

LOOK = "```bash\ncat calc.txt\n```"
FIX = "```bash\necho '1 + 2' > calc.txt\n```"
SUBMIT = "```bash\nsubmit\n```"
SANDBOX = BubblewrapSandbox(memory_mb=128, scratch_mb=16)


@pytest.fixture
async def evaluation(tmp_path, build_tasks):
    data_dir, store_dir = tmp_path / "data", tmp_path / "images"
    await build_tasks(data_dir, SANDBOX, "first", "second", store_dir=store_dir)
    agent = ShellAgentSettings(max_turns=4, max_tokens=64)
    return Evaluation(
        run_id="run",
        run_dir=tmp_path / "run",
        data_dir=data_dir,
        store_dir=store_dir,
        checkpoint="base",
        step=0,
        rollout=RolloutSettings(agent=agent, infra_retries=0, concurrency=2),
        sandbox=SANDBOX,
        prompt_tokens=400,
        response_tokens=800,
    )


TASKS = [EvaluationTask("first", "held-out"), EvaluationTask("second", "held-out")]


async def measure(evaluation, policy, model_dir, tasks=TASKS, **changes):
    told = []
    records = await evaluate(
        evaluation, tasks, policy.engine, make_renderer(model_dir), lambda *progress: told.append(progress), **changes
    )
    return records, told


async def test_an_evaluation_is_greedy_and_recorded(evaluation, policy, model_dir):
    scripted = policy(LOOK, FIX, SUBMIT)
    records, told = await measure(evaluation, scripted, model_dir)
    assert [(record.task, record.outcome) for record in records] == [("first", "solved"), ("second", "solved")]
    assert {asked.sampling.temperature for asked in scripted.engine.received} == {0.0}
    assert [(done, total) for done, total, _ in told] == [(1, 2), (2, 2)]
    assert all(0 < record.seconds.engine < record.seconds.agent for record in records)
    found = read_records(evaluation.run_dir, Phase.EVALUATE)
    assert {record.task for record in found} == {"first", "second"}
    assert {record.checkpoint for record in found} == {"base"}
    assert scripted.engine.closed
    assert not (evaluation.run_dir / "trials").exists() or not list((evaluation.run_dir / "trials").iterdir())


async def test_an_evaluation_goes_on_where_it_stopped_and_runs_losses_again(evaluation, policy, model_dir):
    await measure(evaluation, policy(SUBMIT), model_dir, TASKS[:1])
    lost, _ = await measure(evaluation, policy(ScriptedReply((1,), fail_after=0)), model_dir)
    assert [record.outcome for record in lost] == [Outcome.FAILED, Outcome.INFRA]
    fixing = policy(FIX, SUBMIT)
    records, told = await measure(evaluation, fixing, model_dir)
    assert [record.outcome for record in records] == [Outcome.FAILED, Outcome.SOLVED], "the first is not run again"
    assert [(done, total) for done, total, _ in told] == [(2, 2)]
    again, told = await measure(evaluation, policy(), model_dir)
    assert again == records
    assert told == []


async def test_another_checkpoint_is_measured_anew(evaluation, policy, model_dir):
    await measure(evaluation, policy(SUBMIT), model_dir)
    records, _ = await measure(replace(evaluation, checkpoint="global_step_5", step=5), policy(FIX, SUBMIT), model_dir)
    assert [(record.outcome, record.step) for record in records] == [(Outcome.SOLVED, 5)] * 2


async def test_a_task_without_an_image_is_an_infra_loss_that_names_it(evaluation, policy, model_dir, write_task):
    task = write_task(evaluation.data_dir / "tasks" / "unbuilt")
    (task / "environment" / "calc.txt").write_text("another\n")
    records, _ = await measure(evaluation, policy(SUBMIT), model_dir, [EvaluationTask("unbuilt", "held-out")])
    assert records[0].outcome is Outcome.INFRA
    assert "ImageMissingError" in (records[0].infra_reason or "")


async def test_an_evaluation_on_a_trial_server_measures_the_same(evaluation, policy, model_dir, tmp_path, monkeypatch):
    here, _ = await measure(evaluation, policy(LOOK, FIX, SUBMIT), model_dir)
    runner = sandboxed_runner("server", evaluation.store_dir, SANDBOX, 2)
    monkeypatch.setenv("AGENTIC_TRIAL_SERVER_KEY", KEY)
    environments = (EnvironmentSpec().import_path,)
    async with serving(tmp_path / "server", runner=runner, environments=environments) as url:
        values = evaluation.rollout.model_dump() | {"use_local_trial": False, "trial_server": {"url": url}}
        remote = replace(
            evaluation, rollout=RolloutSettings.model_validate(values), run_dir=tmp_path / "remote", store_dir=tmp_path
        )
        there, _ = await measure(remote, policy(LOOK, FIX, SUBMIT), model_dir)
    facts = [
        [(r.task, r.outcome, r.reward, r.turns, r.calls, r.sampled_tokens, r.attempt) for r in records]
        for records in (here, there)
    ]
    assert facts[0] == facts[1]
    assert [fact[1] for fact in facts[0]] == ["solved", "solved"]
