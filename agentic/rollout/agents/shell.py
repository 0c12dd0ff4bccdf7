"""The plain-text agent: a reply is an optional note and one fenced block, the answer is the command's output."""

from typing import override

from agentic.rollout.agents.chat import Message
from agentic.rollout.agents.commands import CommandAgent
from agentic.rollout.agents.inside_program import command_of


class ShellAgent(CommandAgent):
    """One fenced `bash` block a turn; the observation is a user message."""

    @staticmethod
    @override
    def name() -> str:
        return "shell"

    @override
    def command_of(self, reply: Message) -> str | None:
        return command_of(str(reply.get("content") or ""))

    @override
    def observations(self, reply: Message, text: str) -> list[Message]:
        return [{"role": "user", "content": text}]
