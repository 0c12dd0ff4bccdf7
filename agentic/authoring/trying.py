"""Runs a task's reference solution, and no solution at all, each as a whole trial in a sandbox of its own.

The trials are those of rollouts: the same runner, verifier and sandbox, with commands in place of an agent, so that
what is judged here is what a policy will meet. A trial that ended without a verdict is either the task's own fault
(its tests wrote no reward, or took too long) or says nothing about the task; then it is tried once more, and after that
the task is unjudged, never bad.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.rollout.grading.reference import solution_commands
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import TrialRequest, TrialRunner, sandboxed_runner
from agentic.sandbox.providers import open_store
from agentic.sandbox.settings import SandboxSettings

START_SECONDS, SOLUTION_SECONDS, SPARE_SECONDS = 120.0, 600.0, 60.0
TASK_FAULTS = {
    "RewardFileNotFoundError": "the tests wrote no reward: write 1 or 0 to /logs/verifier/reward.txt",
    "RewardFileEmptyError": "the tests wrote an empty reward: write 1 or 0 to /logs/verifier/reward.txt",
    "VerifierOutputParseError": "the tests wrote a reward that is no number: write 1 or 0",
    "VerifierTimeoutError": "the tests took longer than verifier.timeout_sec: raise it or bound the tests",
}
"""What a trial ends with when the task's own tests are at fault."""


@dataclass(frozen=True, slots=True)
class Trying:
    """How one trial of a task ended."""

    reward: float | None
    fault: str = ""
    """Why there is no reward, when the task is at fault."""
    lost: str = ""
    """Why there is no reward, when something else is."""
    output: str = ""
    """The end of the tests' own output."""


class TaskTrials:
    """Tries tasks whose images are there; made by `task_trials`."""

    def __init__(self, runner: TrialRunner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        self._count = 0

    async def reference(self, task: Path, grading_seconds: float) -> Trying:
        """With the task's own solution."""
        return await self._try(task, grading_seconds, solution_commands(task / "solution"))

    async def empty(self, task: Path, grading_seconds: float) -> Trying:
        """With nothing done."""
        return await self._try(task, grading_seconds, ())

    async def commands(self, task: Path, grading_seconds: float, commands: Sequence[str]) -> Trying:
        """With these commands in place of an agent."""
        return await self._try(task, grading_seconds, tuple(commands))

    async def _try(self, task: Path, grading_seconds: float, commands: tuple[str, ...]) -> Trying:
        trying = await self._once(task, grading_seconds, commands)
        return await self._once(task, grading_seconds, commands) if trying.lost else trying

    async def _once(self, task: Path, grading_seconds: float, commands: tuple[str, ...]) -> Trying:
        self._count += 1
        trial_id = f"{task.name[:150]}.{self._count}"
        result = await self._runner.run(
            TrialRequest(
                trial_id=trial_id,
                task_dir=str(task),
                trials_dir=str(self._folder),
                agent=ScriptedAgentSettings(commands=commands, command_timeout_seconds=SOLUTION_SECONDS),
                base_url="http://127.0.0.1:9/v1",
                api_key="no-model",
                start_seconds=START_SECONDS,
                grading_seconds=grading_seconds,
                deadline_seconds=START_SECONDS + SOLUTION_SECONDS + SPARE_SECONDS + grading_seconds,
                keep="all",
            )
        )
        output = await asyncio.to_thread(_tests_output, self._folder / trial_id)
        facts = result.facts
        if facts.rewards is not None and "reward" in facts.rewards:
            return Trying(facts.rewards["reward"], output=output)
        if fault := TASK_FAULTS.get(facts.exception or ""):
            return Trying(None, fault=fault, output=output)
        return Trying(None, lost=f"{facts.exception or 'no verdict'}: {facts.message}", output=output)


@asynccontextmanager
async def task_trials(
    tasks: Sequence[Path], store_dir: Path, sandbox: SandboxSettings, concurrency: int
) -> AsyncIterator[tuple[TaskTrials, dict[str, str]]]:
    """Builds the tasks' images; gives what tries them, and by task's name why its image could not be built."""
    store = open_store(store_dir, sandbox)
    results = await build_images(tasks, store, ImageSettings(parallelism=concurrency), sandbox)
    broken = {result.task: result.reason for result in results if result.status == "failed"}
    runner = sandboxed_runner("authoring", store_dir, sandbox, concurrency)
    with tempfile.TemporaryDirectory(prefix="agentic-trials-") as folder:
        try:
            yield TaskTrials(runner, Path(folder)), broken
        finally:
            await runner.close()


def _tests_output(trial: Path) -> str:
    path = trial / "verifier" / "test-stdout.txt"
    return path.read_text(errors="replace")[-4000:] if path.is_file() else ""
