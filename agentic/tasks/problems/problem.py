"""One problem, the prompt that a policy gets of it, and its task in Harbor's format."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from agentic.tasks.harbor_format import CONFIG, DOCKERFILE, INSTRUCTION, SOLUTION, TEST, TaskFolder, TaskSpec

BASE_IMAGE = "agentic/base:local"
"""Any image with a POSIX shell and Python 3."""
WORK_FOLDER = "/app"
ANSWER_FILE = "answer.txt"
"""Where an agent leaves its last reply, in the work folder."""
BOXED = r"Reason step by step, and give the final answer within \boxed{}."
WITH_TOOL = "You can run Python code with the tool code_interpreter; it answers with what the code prints."


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its answer."""

    question: str
    answer: str
    """As it would stand in the box."""
    details: dict[str, str] = field(default_factory=dict)
    """More for the row's `extra_info`, such as the level."""


def prompt_of(problem: Problem, *, hints: bool, tools: bool) -> str:
    """What the policy is told; a policy that was taught the form needs no hints."""
    if not hints:
        return problem.question
    return "\n\n".join([problem.question, *([WITH_TOOL] if tools else []), BOXED])


def make_task(problem: Problem, task_id: str, prompt: str) -> TaskFolder:
    """The problem as a task: an agent in a sandbox leaves its reply in a file, and the checker reads that.

    What the checker does not take, since there is no algebra in a sandbox, grading asks about outside of it. The
    trainer's row names no agent loop, so that `train.agent_loop` decides.
    """
    answer = f"{WORK_FOLDER}/{ANSWER_FILE}"
    texts = {
        CONFIG: TaskSpec(
            name=f"problems/{task_id}", difficulty="easy", category="mathematics", answer_file=ANSWER_FILE
        ).to_toml(),
        INSTRUCTION: prompt + "\n",
        DOCKERFILE: f"FROM {BASE_IMAGE}\nWORKDIR {WORK_FOLDER}\n",
        TEST: f"#!/bin/sh\nexec python3 -I -S /tests/check.py {answer} /tests/expected.txt /logs/verifier\n",
        "tests/expected.txt": problem.answer + "\n",
        SOLUTION: f"#!/bin/sh\ncat > {answer} <<'ANSWER'\n\\boxed{{{problem.answer}}}\nANSWER\n",
    }
    contents = {name: text.encode() for name, text in texts.items()}
    contents["tests/check.py"] = files("agentic.tasks.problems").joinpath("plain.py").read_bytes()
    return TaskFolder(task_id, contents, row_of(problem))


def row_of(problem: Problem) -> dict[str, Any]:
    """What differs in the trainer's row from that of other tasks."""
    return {
        "agent_name": None,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "question": problem.question,
            **problem.details,
            # What verl hands a tool when it makes it for a trajectory.
            "need_tools_kwargs": True,
            "tools_kwargs": {"code_interpreter": {"create_kwargs": {"ground_truth": problem.answer}}},
        },
    }
