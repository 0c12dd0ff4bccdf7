"""What a trial that is kept leaves, read as people and other programs read it."""

import json

import pytest
from harbor.models.trajectories import Trajectory as AtifTrajectory

from agentic.proxy import Sampling, SealedSession, Trajectory
from agentic.rollout.atif import atif
from agentic.rollout.folder import leave_folders
from agentic.rollout.outcomes import Outcome
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest, run_rollout
from agentic.rollout.settings import RolloutSettings, ShellAgentSettings
from agentic.rollout.trial import TrialRunner

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

LOOK = "```bash\ncat calc.txt\n```"
FIX = "```bash\necho '1 + 2' > calc.txt\n```"
SUBMIT = "```bash\nsubmit\n```"


def settings(keep="all"):
    return RolloutSettings(
        agent=ShellAgentSettings(max_turns=4, max_tokens=64),
        deadline_seconds=30,
        start_seconds=5,
        grading_seconds=10,
        infra_backoff_seconds=0.01,
        keep_trials=keep,
    )


@pytest.fixture
def request_for(tmp_path, task_dir, environment):
    def make(**environment_kwargs):
        return RolloutRequest(
            rollout_id="uid_0",
            phase=Phase.TRAIN,
            step=3,
            task="calc",
            split="train",
            task_dir=str(task_dir),
            trials_dir=str(tmp_path / "trials"),
            environment=environment(**environment_kwargs),
            sampling=Sampling(temperature=1.0, max_tokens=64),
            prompt_tokens=200,
            response_tokens=600,
        )

    return make


async def left_by(serve, policy, request, keep="all"):
    async with serve(policy) as proxy:
        result = await run_rollout(request, settings(keep), proxy, TrialRunner(2))
    decode = policy._tokenizer.decode
    return result, leave_folders(result, settings(keep), lambda ids: decode(list(ids)))


def read(path):
    return json.loads(path.read_text())


async def test_a_kept_trial_leaves_transcript_atif_timings_outcome_diff_and_verifier(serve, policy, request_for):
    result, (folder,) = await left_by(serve, policy(LOOK, FIX, SUBMIT), request_for())

    outcome = read(folder / "outcome.json")
    assert (outcome["outcome"], outcome["cause"], outcome["reward"]) == ("solved", "the tests passed", 1.0)
    assert (outcome["task"], outcome["agent"], outcome["turns"], outcome["calls"]) == ("calc", "shell", 3, 3)
    assert outcome["sampled_tokens"] == result.sealed.sampled_tokens
    timings = read(folder / "timings.json")
    assert 0 < timings["agent_seconds"] <= timings["total_seconds"]
    assert 0 < timings["grade_seconds"] <= timings["total_seconds"]
    text = (folder / "transcript.md").read_text()
    places = [text.index(said) for said in ("Fix calc.txt.", "cat calc.txt", "1 - 2", "echo '1 + 2'", "submit")]
    assert places == sorted(places), "it reads in the order in which it happened"
    assert (folder / "result.json").is_file(), "Harbor's own record"
    assert (folder / "verifier" / "test-stdout.txt").is_file()


async def test_the_atif_document_is_harbors_and_holds_every_sampled_token(serve, policy, request_for):
    result, (folder,) = await left_by(serve, policy(LOOK, FIX, SUBMIT), request_for())

    document = AtifTrajectory.model_validate_json((folder / "trajectory.json").read_text())
    replies = [step for step in document.steps if step.source == "agent"]
    assert [step.message.strip() for step in replies] == [LOOK, FIX, SUBMIT]
    assert "1 - 2" in replies[0].observation.results[0].content
    assert document.steps[0].source == "user"
    (trajectory,) = result.sealed.trajectories
    trained = [token for token, mask in zip(trajectory.response_ids, trajectory.response_mask, strict=True) if mask]
    assert [token for step in replies for token in step.metrics.completion_token_ids] == trained
    assert document.final_metrics.total_completion_tokens == result.sealed.sampled_tokens
    assert document.extra["session_digest"] == result.sealed.digest


async def test_a_lost_attempt_leaves_its_own_folder_with_the_cause(serve, policy, request_for, tmp_path):
    times = tmp_path / "times"
    times.write_text("1")
    request = request_for(lose_at_command="echo", lose_times_file=str(times))
    result, folders = await left_by(serve, policy(LOOK, FIX, SUBMIT), request)

    assert [attempt.verdict.outcome for attempt in result.attempts] == [Outcome.INFRA, Outcome.SOLVED]
    first, second = (read(folder / "outcome.json") for folder in folders)
    assert (first["outcome"], first["reward"], first["attempt"], first["attempts"]) == ("infra", None, 1, 2)
    assert first["cause"].startswith("SandboxGone: ")
    assert (second["outcome"], second["reward"], second["attempt"]) == ("solved", 1.0, 2)
    assert "cat calc.txt" in (folders[0] / "transcript.md").read_text(), "what it had said until then"


@pytest.mark.parametrize(
    ("keep", "kept"), [("none", []), ("infra", []), ("failed", []), ("all", ["uid_0-1"])], ids=lambda value: str(value)
)
async def test_a_solved_trial_leaves_a_folder_only_where_all_are_kept(serve, policy, request_for, keep, kept):
    request = request_for()
    _, folders = await left_by(serve, policy(FIX, SUBMIT), request, keep)

    assert [folder.name for folder in folders] == kept
    assert sorted(path.name for path in (folders[0].parent.iterdir() if folders else ())) == kept


async def test_no_file_of_the_folder_holds_the_sessions_key(serve, policy, request_for):
    seen = []

    class Watched:
        def __init__(self, proxy):
            self._proxy = proxy

        async def open(self, spec):
            handle = await self._proxy.open(spec)
            seen.append(handle.api_key)
            return handle

        def __getattr__(self, name):
            return getattr(self._proxy, name)

    scripted = policy(FIX, SUBMIT)
    async with serve(scripted) as proxy:
        result = await run_rollout(request_for(), settings(), Watched(proxy), TrialRunner(1))
    (folder,) = leave_folders(result, settings(), lambda ids: scripted._tokenizer.decode(list(ids)))

    (key,) = seen
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if key.encode() in path.read_bytes()]


async def test_a_disk_that_takes_nothing_costs_the_folder_and_not_the_rollout(serve, policy, request_for, tmp_path):
    (tmp_path / "trials").write_text("a file where the folder should be")
    async with serve(policy(FIX, SUBMIT)) as proxy:
        result = await run_rollout(request_for(), settings(), proxy, TrialRunner(1))

    assert leave_folders(result, settings(), str) == []


def test_further_trajectories_are_embedded_in_the_last_one():
    def branch(ids):
        return Trajectory(
            prompt_ids=[1],
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=[-0.5] * len(ids),
            versions=[4] * len(ids),
        )

    sealed = SealedSession(
        session_id="s",
        digest="d",
        complete=True,
        incomplete_reason=None,
        overflowed=False,
        calls=2,
        sampled_tokens=3,
        undelivered_tokens=0,
        overridden={},
        trajectories=[branch([5]), branch([6, 7])],
    )
    document = AtifTrajectory.model_validate(atif(sealed, "shell", str))

    assert document.trajectory_id == "s.2"
    assert [embedded.trajectory_id for embedded in document.subagent_trajectories] == ["s.1"]
    assert document.steps[1].metrics.completion_token_ids == [6, 7]
    assert document.steps[1].extra["policy_versions"] == [4]
