"""What an agent that runs one command a turn has in common: the loop, the command's run, the text the model sees.

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
from agentic.rollout.errors import RolloutConfigError

SUBMIT = "submit"
"""The command that ends the agent's work; it is not run."""


class ModelAgent(BaseAgent):  # type: ignore[misc]
    """A Harbor agent whose model answers at an endpoint that is told after construction.

    The key never passes through the trial's configuration, which Harbor writes to disk.
    """

    _endpoint: ChatEndpoint | None = None

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
        """Nothing is installed in the sandbox: these agents live outside of it."""


class CommandAgent(ModelAgent):
    """Asks the model, runs one shell command in the sandbox, feeds back its output, until the model submits."""

    tools: ClassVar[tuple[Message, ...]] = ()

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
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._command_timeout_seconds = command_timeout_seconds
        self._output_characters = output_characters

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
            for turn in range(1, self._max_turns + 1):
                context.metadata = {"turns": turn}
                reply = await chat.complete(messages, max_tokens=self._max_tokens, tools=self.tools)
                command = self.command_of(reply)
                if command == SUBMIT:
                    return
                messages += [reply, *self.observations(reply, await self._observe(environment, command))]

    async def _observe(self, environment: BaseEnvironment, command: str | None) -> str:
        if command is None:
            return "no command"
        result = await run_command(environment, command, self._command_timeout_seconds)
        return output_text(result, self._output_characters)


async def run_command(environment: BaseEnvironment, command: str, timeout_seconds: float) -> ExecResult:
    """Run it in the sandbox; Harbor's interface counts whole seconds, so a fraction is rounded up."""
    return await environment.exec(command=command, timeout_sec=max(1, -int(-timeout_seconds // 1)))


def output_text(result: ExecResult, limit_characters: int) -> str:
    """What the model sees of a command: its output, or one word when there is none."""
    text = ((result.stdout or "") + (result.stderr or "")).strip()
    if not text:
        return "error" if result.return_code else "ok"
    return cut_middle(text, limit_characters)


def cut_middle(text: str, limit_characters: int) -> str:
    """At most `limit_characters` of text, its middle replaced by a marker that says how much is missing."""
    if len(text) <= limit_characters:
        return text
    # The marker's own length depends on the number in it; 40 characters hold any.
    keep = max(limit_characters - 40, 0)
    head, tail = keep - keep // 2, keep // 2
    marker = f"\n[... {len(text) - keep} characters cut ...]\n"
    return text[:head] + marker + (text[-tail:] if tail else "")
