"""What agents outside of the sandbox have in common: their limits, their endpoint, and the loop over turns.

The loop ends when a reply ends the work, when the turns are used, or when the session's budget is spent. A command of
the last turn is still run: its effect counts, even though nobody reads its output. Losing the sandbox raises through
here and ends the trial; it never becomes an observation.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents.chat import ChatClient, ChatEndpoint, Message
from agentic.rollout.agents.inside_program import NO_COMMAND, NOT_STARTED_EXIT_CODE, SUBMIT, output_text
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


class TurnAgent(ModelAgent):
    """Asks the model, answers its reply, and asks again, until a reply ends the work or the turns are used."""

    tools: ClassVar[tuple[Message, ...]] = ()

    @abstractmethod
    async def answers(self, reply: Message, environment: BaseEnvironment, *, is_last: bool) -> list[Message] | None:
        """Do what a reply asks for, and give the messages that tell of it; None when the work is done. Nobody reads
        what the last turn is told."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        messages: list[Message] = [{"role": "user", "content": instruction.strip()}]
        async with ChatClient(self.endpoint) as chat:
            for turn in range(1, self.max_turns + 1):
                context.metadata = {"turns": turn}
                reply = await chat.complete(messages, max_tokens=self.max_tokens, tools=self.tools)
                told = await self.answers(reply, environment, is_last=turn == self.max_turns)
                if told is None:
                    return
                messages += [reply, *told]


class CommandAgent(TurnAgent):
    """Runs one shell command of each reply in the sandbox and feeds back its output, until the model submits."""

    @abstractmethod
    def command_of(self, reply: Message) -> str | None:
        """The one command in the model's reply; None when there is none."""

    @abstractmethod
    def observations(self, reply: Message, text: str) -> list[Message]:
        """The messages that show `text` to the model in answer to `reply`."""

    @override
    async def answers(self, reply: Message, environment: BaseEnvironment, *, is_last: bool) -> list[Message] | None:
        command = self.command_of(reply)
        return None if command == SUBMIT else self.observations(reply, await self._observe(environment, command))

    async def _observe(self, environment: BaseEnvironment, command: str | None) -> str:
        if command is None:
            return NO_COMMAND
        result = await run_command(environment, command, self.command_timeout_seconds)
        output = (result.stdout or "") + (result.stderr or "")
        return output_text(output, result.return_code, self.output_characters)


def tool_messages(calls: Sequence[Mapping[str, Any]], text: str, others: str) -> list[Message]:
    """What a reply's calls are told: the first one `text`, those after it `others`."""
    return [
        {"role": "tool", "tool_call_id": call.get("id", ""), "content": others if number else text}
        for number, call in enumerate(calls)
    ]


async def run_command(environment: BaseEnvironment, command: str, timeout_seconds: float) -> ExecResult:
    """Run it in the sandbox; Harbor's interface counts whole seconds, so a fraction is rounded up. What no command line
    can hold is told to the model, and no loss of its rollout."""
    if problem := _problem_of(command):
        return ExecResult(stderr=f"the command was not started: {problem}\n", return_code=NOT_STARTED_EXIT_CODE)
    return await environment.exec(command=command, timeout_sec=max(1, -int(-timeout_seconds // 1)))


def _problem_of(command: str) -> str:
    """Why it is no word for a kernel; empty for any other."""
    try:
        command.encode()
    except UnicodeEncodeError as error:
        return f"it holds what is no character: {error}"
    return "it holds a NUL" if "\0" in command else ""
