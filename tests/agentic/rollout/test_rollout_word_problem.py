"""A word problem by hand: the agent with a code tool, a real sandbox, the task's checker, on a scripted model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.tasks.harbor_format import write_task
from agentic.tasks.problems.generator import generate
from agentic.tasks.problems.problem import make_task

MADE = generate(1, "by hand")[0]


def call(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'code_interpreter', 'arguments': {'code': code}})}\n</tool_call>"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("answer", "code", "outcome"), [(MADE.problem.answer, 0, "solved"), (f"{MADE.problem.answer}1", 1, "failed")]
)
def test_the_reply_without_a_call_is_graded(tmp_path: Path, answer: str, code: int, outcome: str) -> None:
    write_task(make_task(MADE.problem, "train-00000", MADE.problem.question), tmp_path / "train-00000")
    script = tmp_path / "replies.json"
    script.write_text(json.dumps([call(MADE.code), f"\\boxed{{{answer}}}"]))
    words = [sys.executable, "-m", "agentic.rollout", "run", str(tmp_path / "train-00000")]
    words += ["--agent", "code-interpreter", "--model", f"scripted:{script}", "--out", str(tmp_path / "out")]
    words += ["--set", "rollout.agent.max_tokens=400"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    assert (said["outcome"], said["turns"]) == (outcome, "2")
