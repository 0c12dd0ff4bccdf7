"""Answers of mathematics tasks, compared outside of the sandbox by the rule that verl's own loops go by.

A task's checker knows plain answers alone, for there is no algebra in a sandbox. What it takes for wrong is asked about
here, of what the agent left in the task's `answer_file`.
"""

from collections.abc import Iterable
from pathlib import Path

from agentic.rollout.grading.changes import Change
from agentic.rollout.grading.tree import Kind
from agentic.tasks.problems.answers import shared_checker
from agentic.tasks.problems.plain import boxed

EXPECTED = "expected.txt"
"""The right answer, among the task's tests."""


async def is_right(tests: Path, answer_file: str, changes: Iterable[Change]) -> bool:
    """Whether what the agent left means the task's answer."""
    left = (change.new for change in changes if change.path == answer_file)
    reply = next((node.content for node in left if node is not None and node.kind is Kind.FILE), b"")
    expected = (tests / EXPECTED).read_text().strip()
    return await shared_checker().is_correct(boxed(reply.decode(errors="replace")), expected)
