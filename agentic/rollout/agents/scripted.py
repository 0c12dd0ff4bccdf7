"""A deterministic double: runs given commands in the sandbox and asks no model."""

from collections.abc import Sequence
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents.commands import run_command


class ScriptedAgent(BaseAgent):  # type: ignore[misc]
    """Fakes the model, not the sandbox: its commands run for real."""

    def __init__(self, *args: Any, commands: Sequence[str], command_timeout_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands = tuple(commands)
        self._command_timeout_seconds = command_timeout_seconds

    @staticmethod
    @override
    def name() -> str:
        return "scripted"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing to set up."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        for turn, command in enumerate(self._commands, start=1):
            context.metadata = {"turns": turn}
            await run_command(environment, command, self._command_timeout_seconds)
