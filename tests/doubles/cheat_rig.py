"""Trials of the cheating suite's tasks by scripted agents, and the same by Harbor's own verifier.

Nothing is faked but the model: the agents' commands run in real sandboxes by bubblewrap, through real trials, and are
graded by the real verifier. The control is Harbor's stock verifier over the plain sandbox: it judges in the agent's own
sandbox, with the history, the processes and the files that the agent left there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cheat_tasks import STOCK, TASKS, Files, write_task

from agentic.images.local import build_images
from agentic.images.settings import ImageSettings
from agentic.rollout.settings import ScriptedAgentSettings
from agentic.rollout.trial import EnvironmentSpec, TrialRequest, TrialResult, sandboxed_runner
from agentic.sandbox.images import open_images
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import BubblewrapSandbox

SANDBOX = BubblewrapSandbox(memory_mb=256, scratch_mb=64, max_processes=64)
COMMAND_SECONDS, GRADING_SECONDS = 10, 45


@dataclass(frozen=True)
class Graded:
    """How a trial ended."""

    result: TrialResult
    folder: Path

    @property
    def reward(self) -> float | None:
        return self.result.facts.rewards["reward"] if self.result.facts.rewards else None

    @property
    def diff(self) -> str:
        return (self.folder / "verifier" / "diff.patch").read_text()

    def __str__(self) -> str:
        output = self.folder / "verifier" / "test-stdout.txt"
        return f"{self.result}\n{output.read_text() if output.is_file() else ''}"


class CheatRig:
    """Tasks and their images in a folder, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def try_cheat(self, task: str, *commands: str) -> Graded:
        """One trial, kept whole."""
        return asyncio.run(self.run(task, *commands))

    def try_unprotected(self, task: str, *commands: str) -> float | None:
        """What the stock verifier gives for the same; None when it gives nothing."""
        return asyncio.run(self.run_unprotected(task, *commands))

    async def run(self, task: str, *commands: str, sockets: dict[str, str] | None = None) -> Graded:
        """See `try_cheat`; `sockets` of the host are shown to the agent."""
        request = TrialRequest(
            trial_id=self._next(task),
            task_dir=str(await self._task(task, TASKS[task])),
            trials_dir=str(self.folder / "trials"),
            agent=ScriptedAgentSettings(commands=commands, command_timeout_seconds=COMMAND_SECONDS),
            base_url="http://127.0.0.1:9/v1",
            api_key="no-model",
            environment=EnvironmentSpec(kwargs={"sockets": sockets} if sockets else {}),
            deadline_seconds=105,
            start_seconds=15,
            grading_seconds=GRADING_SECONDS,
            keep="all",
        )
        runner = sandboxed_runner("cheats", self.folder / "images", SANDBOX, 1)
        try:
            return Graded(await runner.run(request), self.folder / "trials" / request.trial_id)
        finally:
            await runner.close()

    async def run_unprotected(self, task: str, *commands: str) -> float | None:
        """See `try_unprotected`."""
        from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
        from harbor.trial.trial import Trial

        from agentic.rollout.agents.names import AGENTS
        from agentic.sandbox.harbor_environment import IMPORT_PATH, SandboxScope, sandbox_scope

        config = TrialConfig(
            task=TaskConfig(path=await self._task(f"stock-{task}", STOCK[task])),
            trial_name=self._next(f"stock-{task}"),
            trials_dir=self.folder / "trials",
            agent=AgentConfig(
                import_path=AGENTS["scripted"].import_path,
                kwargs={"commands": commands, "command_timeout_seconds": COMMAND_SECONDS},
            ),
            environment=EnvironmentConfig(import_path=IMPORT_PATH, delete=True),
            verifier=VerifierConfig(override_timeout_sec=GRADING_SECONDS),
        )
        store = open_store(self.folder / "images", SANDBOX)
        provider = make_provider(SANDBOX, store)
        try:
            with sandbox_scope(SandboxScope(provider, open_images(SANDBOX, store), "cheats")):
                result = await (await Trial.create(config)).run()
        finally:
            await provider.close()
        rewards = result.verifier_result.rewards if result.verifier_result else None
        return rewards.get("reward") if rewards else None

    def _next(self, name: str) -> str:
        self._count += 1
        return f"{name}-{self._count}"

    async def _task(self, name: str, make: Callable[[], Files]) -> Path:
        folder = self.folder / "tasks" / name
        if not folder.is_dir():
            write_task(folder, make())
            store = open_store(self.folder / "images", SANDBOX)
            (result,) = await build_images([folder], store, ImageSettings(), SANDBOX)
            assert result.status != "failed", result.reason
        return folder
