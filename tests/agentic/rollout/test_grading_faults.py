"""Whose doing it is when grading goes wrong: the agent's is a zero with its reason, everything else is never one."""

import pytest

from agentic.rollout.grading.time_limits import GradingTime
from agentic.rollout.outcomes import CaptureFacts, Outcome, decide
from agentic.rollout.trial import EnvironmentSpec, TrialRunner

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"
PLANT = "touch planted"


@pytest.fixture
def graded(trial_for, task_dir):
    """One trial, with a test script that may ask `$P` whether the agent planted something."""

    async def run(*commands, test=None, grading_seconds=10.0, task_seconds=None, **hindrances):
        if test is not None:
            lines = ["#!/bin/sh", '[ -e "$ROOT/testbed/planted" ] && P=1 || P=', 'cd "$ROOT/logs/verifier"', test]
            (task_dir / "tests" / "test.sh").write_text("\n".join(lines) + "\n")
        if task_seconds is not None:
            config = (task_dir / "task.toml").read_text()
            changed = config.replace("[verifier]\ntimeout_sec = 60.0", f"[verifier]\ntimeout_sec = {task_seconds}")
            (task_dir / "task.toml").write_text(changed)
        spec = EnvironmentSpec(import_path="hindered_environment:HinderedEnvironment", kwargs=hindrances)
        request = trial_for(*commands, environment=spec, grading_seconds=grading_seconds)
        return await TrialRunner(1).run(request)

    return run


def outcome(result):
    return decide(result.facts, CaptureFacts(complete=True, calls=1)).outcome


async def test_changes_that_cannot_be_brought_are_the_agents_failure(graded):
    result = await graded(FIX, "echo 'kept out' > x")
    assert result.facts.rewards == {"reward": 0.0}
    assert "cannot be brought to a fresh sandbox" in result.grading.refused


async def test_tests_that_cannot_be_brought_are_a_loss(graded, task_dir):
    (task_dir / "tests" / "data").write_text("kept out")
    result = await graded(FIX)
    assert (result.facts.rewards, result.facts.exception) == (None, "SandboxTransferError")


async def test_an_answer_too_long_for_any_agent_is_the_agents_failure(graded):
    result = await graded(FIX, "head -c 300000 /dev/zero > x", agents_answer_bytes=100_000)
    assert result.facts.rewards == {"reward": 0.0}
    assert "did not arrive whole" in result.grading.refused


async def test_an_answer_too_long_for_every_sandbox_is_a_loss(graded):
    result = await graded(FIX, "head -c 300000 /dev/zero > x", answer_bytes=100_000)
    assert (outcome(result), result.facts.exception) == (Outcome.INFRA, "GradingSetupError")
    assert "raise sandbox.output_limit_bytes" in result.facts.message


async def test_the_tests_have_their_time_whatever_the_verifier_waited_for(graded):
    takes = "sleep 2.5; echo 1 > reward.txt"
    assert (await graded(FIX, test=takes, grading_seconds=5.0)).facts.rewards == {"reward": 1.0}


async def test_tests_that_the_verifiers_waiting_cut_short_are_a_loss_and_no_zero(graded):
    result = await graded(FIX, test="sleep 2.5; echo 1 > reward.txt", grading_seconds=5.0, renew_seconds=3.0)
    assert (outcome(result), result.facts.exception) == (Outcome.INFRA, "GradingTimeError")


async def test_tests_that_take_longer_than_they_may_fail_even_when_the_verifier_waited(graded):
    result = await graded(FIX, test="sleep 30", task_seconds=1.0, renew_seconds=1.0)
    assert (result.facts.rewards, result.grading.timed_out) == ({"reward": 0.0}, True)


async def test_tests_that_the_runs_own_clock_cuts_say_so(graded, tmp_path):
    result = await graded(FIX, test="sleep 30", grading_seconds=5.0, task_seconds=9.0)
    assert (result.facts.rewards, result.grading.timed_out) == ({"reward": 0.0}, True)
    said = (tmp_path / "trials" / "trial-1" / "verifier" / "test-stdout.txt").read_text()
    assert said.startswith("the tests took longer than 4 s of the 9 that the task allows: rollout.grading_seconds")


async def test_what_kept_grading_from_its_end_is_told_and_not_how_the_agent_ended_before(trial_for, task_dir):
    (task_dir / "tests" / "data").write_text("kept out")
    spec = EnvironmentSpec(import_path="hindered_environment:HinderedEnvironment")
    result = await TrialRunner(1).run(trial_for("sleep 30", environment=spec, deadline_seconds=16.5))
    assert (result.facts.rewards, result.facts.exception) == (None, "SandboxTransferError")


async def test_an_untouched_folder_whose_tests_take_too_long_is_a_loss(graded):
    result = await graded(PLANT, test='[ "$P" ] || sleep 30', task_seconds=1.0)
    assert (outcome(result), result.facts.exception) == (Outcome.INFRA, "GradingSetupError")


async def test_a_fresh_sandbox_that_only_the_changes_exhaust_is_the_agents_failure(graded):
    result = await graded(FIX, PLANT, exhausted_by="planted")
    assert result.facts.rewards == {"reward": 0.0}
    assert "over its memory" in result.grading.reason


async def test_a_task_that_exhausts_its_sandbox_by_itself_is_a_loss(graded):
    result = await graded(FIX, exhausted_by="calc.txt")
    assert (outcome(result), result.facts.exception) == (Outcome.INFRA, "GradingSetupError")


TEXT, JSON = "echo {} > reward.txt", "printf '%s' '{}' > reward.json"


@pytest.mark.parametrize(
    ("text", "json", "reward"),
    [
        ("0", '{"reward": 1}', 0.0),
        ("1", '{"reward": 0}', 0.0),
        ("0", '{"x": 1}', 0.0),
        ("1", '{"x": 1}', 0.0),
        ("1", '{"reward": NaN}', 0.0),
        ("1", "[]", 0.0),
        ("1", "", 0.0),
        ("0", "[" * 30000, 0.0),
        ("0", '{"reward": 1' + "0" * 400 + "}", 0.0),
        ("0\\n1", '{"reward": 1}', 0.0),
        ("1", '{"reward": 1, "speed": 3}', 1.0),
        ("0.5", '{\n"reward":\n0.5}', 0.5),
        ("1", '{\n"reward": 1' + "".join(f',\n"t{n}": 1.0' for n in range(1500)) + "}", 1.0),
        ("1\\n\\n", '{"reward": 1}', 1.0),
    ],
)
async def test_two_reward_files_count_only_when_they_agree(graded, text, json, reward):
    write = "\n".join((f"printf '{text}' > reward.txt", f"cat > reward.json <<'END'\n{json}\nEND"))
    result = await graded(test=write if json else f"printf '{text}' > reward.txt; : > reward.json")
    assert result.facts.rewards["reward"] == reward
    assert ("disagree" in result.grading.reason) == (reward == 0.0)


@pytest.mark.parametrize("json", ['{"x": 1}', '{"reward": Infinity}', '{"reward": "1"}', "{}", "1", "[[[["])
async def test_a_reward_that_is_no_finite_number_only_with_the_changes_is_the_agents_failure(graded, json):
    test = f"if [ \"$P\" ]; then echo '{json}' > reward.json; else echo 0 > reward.txt; fi"
    result = await graded(PLANT, test=test)
    assert result.facts.rewards == {"reward": 0.0}
    assert "without them they do" in result.grading.reason


FORGED = """\
[ "$P" ] || { echo 0 > reward.txt; exit; }
echo 0 > reward.txt
read -r _ _ _ above _ < /proc/$PPID/stat
for shell in $PPID $above; do printf 'quiet\\ntext 1\\nnone\\n' > /proc/$shell/fd/1; AFTER; done
"""


@pytest.mark.parametrize("after", ["kill -9 $shell", "true"])
async def test_an_answer_that_code_under_test_put_before_the_verifiers_own_is_not_believed(graded, after):
    result = await graded(PLANT, test=FORGED.replace("AFTER", after))
    assert result.facts.rewards == {"reward": 0.0}
    assert "without them they do" in result.grading.reason


async def test_a_task_whose_tests_never_write_a_finite_reward_is_a_loss(graded):
    result = await graded(FIX, test="echo '{\"x\": 1}' > reward.json")
    assert outcome(result) is Outcome.INFRA


async def test_what_is_too_large_or_compiled_is_left_out_and_named_and_the_rest_counts(graded):
    masses = "mkdir -p many/deep && cd many/deep && seq 1 6000 | xargs touch"
    large = "head -c 9000000 /dev/zero > large.bin; mkdir build; touch build/fast.so build/note"
    result = await graded(FIX, masses, large)
    assert result.facts.rewards == {"reward": 1.0}
    assert set(result.grading.left_out) == {"many/", "large.bin", "build/fast.so"}
    assert set(result.grading.changed) == {"calc.txt", "build/note"}


async def test_too_much_in_the_place_of_something_of_the_tasks_is_refused_by_name(graded):
    result = await graded("head -c 9000000 /dev/zero > calc.txt")
    assert result.facts.rewards == {"reward": 0.0}
    assert "'calc.txt' was changed and has 9000000 bytes" in result.grading.refused


class Clock:
    """Goes on when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("read", "waited", "promised", "is_cut"), [(0, 10, 30, False), (0, 16, 28, True), (5, 5, 30, False)]
)
def test_only_waiting_cuts_what_the_tests_were_promised(read, waited, promised, is_cut):
    clock = Clock()
    time = GradingTime(45.0, clock)
    clock.now += read
    time.count_reading(read)
    clock.now += waited
    limit = time.of_tests(30.0)
    assert limit.is_cut is is_cut
    assert limit.seconds == pytest.approx(promised, abs=2.5)


def test_a_folder_that_takes_long_to_read_shortens_the_promise_and_cuts_nothing():
    clock = Clock()
    time = GradingTime(45.0, clock)
    assert time.reading_seconds == 15.0
    clock.now += 15.0
    time.count_reading(15.0)
    limit = time.of_tests(30.0)
    assert (limit.seconds < 30.0, limit.is_cut) == (True, False)
