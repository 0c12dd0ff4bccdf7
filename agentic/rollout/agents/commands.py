"""What agents that run one command a turn have in common: their limits, their endpoint, and the loop outside.

The loop ends when the model submits, when it has used its turns, or when the session's budget is spent. The last turn's
command is still run: its effect counts, even though nobody reads its output. Losing the sandbox raises through here and
ends the trial; it never becomes an observation.
"""

from abc import abstractmethod
from typing import Any, ClassVar, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents.chat import ChatClient, ChatEndpoint, Message
from agentic.rollout.agents.inside_program import NO_COMMAND, SUBMIT, output_text
from agentic.rollout.errors import RolloutConfigError


class ModelAgent(BaseAgent):  # type: ignore[misc]
    """A Harbor agent with bounds on its turns, whose model answers at an endpoint that is told after construction.

    The key never passes through the trial's configuration, which Harbor writes to disk.
    """

    def __init__(
        self,
        *args: Any,
        max_turns: int,
        max_tokens: int,
        command_timeout_seconds: float,
        output_characters: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.command_timeout_seconds = command_timeout_seconds
        self.output_characters = output_characters
        self._endpoint: ChatEndpoint | None = None

    def connect(self, endpoint: ChatEndpoint) -> None:
        """Use this endpoint; called once, before the trial runs."""
        self._endpoint = endpoint

    @property
    def endpoint(self) -> ChatEndpoint:
        """The connected endpoint."""
        if self._endpoint is None:
            raise RolloutConfigError(
                f"agent {self.name()!r} has no model endpoint: call connect() before the trial runs"
            )
        return self._endpoint

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing has to be installed in the sandbox."""


class CommandAgent(ModelAgent):
    """Asks the model, runs one shell command in the sandbox, feeds back its output, until the model submits."""

    tools: ClassVar[tuple[Message, ...]] = ()

    @abstractmethod
    def command_of(self, reply: Message) -> str | None:
        """The one command in the model's reply; None when there is none."""

    @abstractmethod
    def observations(self, reply: Message, text: str) -> list[Message]:
        """The messages that show `text` to the model in answer to `reply`."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        messages: list[Message] = [{"role": "user", "content": instruction.strip()}]
        async with ChatClient(self.endpoint) as chat:
            for turn in range(1, self.max_turns + 1):
                context.metadata = {"turns": turn}
                reply = await chat.complete(messages, max_tokens=self.max_tokens, tools=self.tools)
                command = self.command_of(reply)
                if command == SUBMIT:
                    return
                messages += [reply, *self.observations(reply, await self._observe(environment, command))]

    async def _observe(self, environment: BaseEnvironment, command: str | None) -> str:
        if command is None:
            return NO_COMMAND
        result = await run_command(environment, command, self.command_timeout_seconds)
        output = (result.stdout or "") + (result.stderr or "")
        return output_text(output, result.return_code, self.output_characters)


async def run_command(environment: BaseEnvironment, command: str, timeout_seconds: float) -> ExecResult:
    """Run it in the sandbox; Harbor's interface counts whole seconds, so a fraction is rounded up."""
    return await environment.exec(command=command, timeout_sec=max(1, -int(-timeout_seconds // 1)))
