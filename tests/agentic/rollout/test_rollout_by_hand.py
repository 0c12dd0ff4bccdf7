"""`python -m agentic.rollout run`, as a person uses it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentic.rollout.__main__ import main
from agentic.rollout.agents.settings import MiniSweAgentSettings
from agentic.rollout.by_hand import read_settings
from agentic.rollout.grading.time_limits import GradingTime

REPOSITORY = Path(__file__).parents[3]
TASK = REPOSITORY / "tasks" / "interval-merge-order"
SUBMIT = "```bash\nsubmit\n```"

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def script(folder, *replies):
    path = folder / "replies.yaml"
    path.write_text(yaml.safe_dump(list(replies)))
    return f"scripted:{path}"


def run(folder, model, *words, task=TASK):
    command = [sys.executable, "-m", "agentic.rollout", "run", task, "--agent", "shell", "--model", model, "--json"]
    done = subprocess.run(
        [*map(str, command), "--out", str(folder / "trials"), *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done, json.loads(done.stdout) if done.stdout else None


@needs_bubblewrap
@pytest.mark.timeout(200)
def test_a_reply_that_repairs_the_code_solves_the_task_and_leaves_the_whole_folder(tmp_path):
    solution = (TASK / "solution" / "solve.sh").read_text()
    done, report = run(tmp_path, script(tmp_path, f"Sorted first.\n```bash\n{solution}\n```", SUBMIT))

    assert done.returncode == 0, done.stdout + done.stderr
    assert (report["outcome"], report["reward"], report["turns"], report["calls"]) == ("solved", 1.0, 2, 2)
    assert "image ready" in done.stderr
    assert "tokens sampled" in done.stderr, "it tells how far it is while it runs"
    folder = Path(report["folder"])
    assert json.loads((folder / "outcome.json").read_text())["outcome"] == "solved"
    assert "Sorted first." in (folder / "transcript.md").read_text()
    assert json.loads((folder / "trajectory.json").read_text())["schema_version"].startswith("ATIF-v1")
    timings = json.loads((folder / "timings.json").read_text())
    assert min(timings["agent_seconds"], timings["engine_seconds"]) > 0
    assert "+++ b/" in (folder / "verifier" / "diff.patch").read_text()
    assert (folder / "verifier" / "test-stdout.txt").read_text()


@needs_bubblewrap
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("replies", "code", "outcome"), [((SUBMIT,), 1, "failed"), (("```bash\ntrue\n```",), 75, "infra")]
)
def test_the_exit_code_tells_a_failed_task_from_a_lost_trial(tmp_path, replies, code, outcome):
    done, report = run(tmp_path, script(tmp_path, *replies))

    assert (done.returncode, report["outcome"]) == (code, outcome), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--model", "scripted:x"], "is no task"),
        ([str(TASK), "--model", "scripted:no-such-file"], "No such file"),
        ([str(TASK), "--model", "http://127.0.0.1:9"], "needs --tokenizer"),
        ([str(TASK), "--model", "http://127.0.0.1:9", "--tokenizer", "x", "--key-env", "UNSET_KEY"], "UNSET_KEY"),
        ([str(TASK), "--model", "scripted:x", "--set", "rollout.agent.no_such=1"], "no_such"),
        ([str(TASK), "--model", "scripted:x", "--set", "trainer.steps=1"], "rollout.KEY=VALUE or sandbox.KEY=VALUE"),
        ([str(TASK), "--model", "scripted:x", "--set", "nothing"], "write KEY=VALUE"),
        ([str(TASK), "--model", "scripted:x", "--set", "rollout=3"], "rollout.KEY=VALUE or sandbox.KEY=VALUE"),
        ([str(TASK), "--model", "scripted:x", "--set", "sandbox.memory_mb=[1"], "the value is no YAML"),
        (
            [str(TASK), "--model", "scripted:x", "--set", "rollout.agent=x", "--set", "rollout.agent.max_turns=1"],
            "plain",
        ),
        ([str(TASK), "--model", "scripted:x", "--set", "rollout.deadline_seconds=20"], "raise the deadline"),
        ([str(TASK), "--model", "scripted:x", "--set", "rollout.infra_retries=2"], "it is 0 for a trial by hand"),
        ([str(TASK), "--model", "scripted:x", "--sandbox", "no-such"], "sandbox"),
    ],
)
def test_what_has_to_be_changed_is_said_in_one_line(words, message, tmp_path, capsys):
    code = main(["run", *words, "--agent", "shell", "--out", str(tmp_path / "out")])

    said = capsys.readouterr().err.strip().splitlines()
    assert code == 78
    assert message in said[-1]


def test_unless_set_the_clock_is_the_tasks_and_an_agent_of_ours_may_talk(tmp_path):
    (tmp_path / "task.toml").write_text("[agent]\ntimeout_sec = 1800\n[verifier]\ntimeout_sec = 1920\n")
    by_task, _ = read_settings("shell", "bubblewrap", [], tmp_path)
    assert (by_task.agent_seconds, by_task.grading_seconds) == (1800, 1935)
    assert GradingTime(by_task.grading_seconds, lambda: 0.0).of_tests(1920).seconds == 1920
    assert (by_task.agent.max_turns, by_task.agent.max_tokens) == (30, 2048)
    words = ["rollout.agent.max_tokens=7", "rollout.deadline_seconds=4000"]
    chosen, _ = read_settings("shell", "bubblewrap", words, tmp_path)
    assert (chosen.agent.max_turns, chosen.agent.max_tokens, chosen.deadline_seconds) == (30, 7, 4000)
    assert read_settings("mini-swe-agent", "bubblewrap", [], tmp_path)[0].agent == MiniSweAgentSettings()


def test_help_has_examples_and_is_quick():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "agentic.rollout", "run", "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "examples:" in done.stdout
    assert "exit codes: 0 solved, 1 not solved" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"harbor", "torch", "verl", "ray", "transformers"}
