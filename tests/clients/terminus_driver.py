"""Runs Terminus-2 as harbor does, with the folder it is started in as its environment: `BASE_URL CONTEXT_TOKENS TASK`.

Stands for harbor's trial around the agent: an environment whose commands are processes here. The agent is harbor's own.
"""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from harbor.agents.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


class HereEnvironment(BaseEnvironment):
    """Commands run in the current folder."""

    @staticmethod
    def type() -> str:
        return "here"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        pass

    async def upload_file(self, source_path: Any, target_path: str) -> None:
        shutil.copy2(source_path, target_path)

    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Any) -> None:
        shutil.copy2(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Any) -> None:
        shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await process.communicate()
        return ExecResult(stdout=output.decode(), stderr=errors.decode(), return_code=process.returncode or 0)


async def main(base_url: str, context_tokens: str, task: str) -> None:
    """One run of the agent."""
    logs = Path.home() / "logs"
    paths = TrialPaths(logs)
    paths.agent_dir.mkdir(parents=True)
    environment = HereEnvironment(Path.cwd(), "here", "here", paths, EnvironmentConfig())
    limits = {
        "max_input_tokens": int(context_tokens),
        "max_output_tokens": 4096,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }
    agent = Terminus2(
        logs_dir=paths.agent_dir,
        model_name="openai/policy",
        api_base=base_url,
        model_info=limits,
        record_terminal_session=False,
    )
    await agent.setup(environment)
    await agent.run(task, environment, AgentContext())


asyncio.run(main(*sys.argv[1:]))
