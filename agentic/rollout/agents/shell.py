"""The plain-text agent: a reply is an optional note and one fenced block, the answer is the command's output."""

import re
from typing import override

from agentic.rollout.agents.chat import Message
from agentic.rollout.agents.commands import CommandAgent

_FENCE = re.compile(r"```bash\n(.*?)\n```", re.DOTALL)


class ShellAgent(CommandAgent):
    """One fenced `bash` block a turn; the observation is a user message."""

    @staticmethod
    @override
    def name() -> str:
        return "shell"

    @override
    def command_of(self, reply: Message) -> str | None:
        match = _FENCE.search(str(reply.get("content") or ""))
        return match[1].strip() or None if match else None

    @override
    def observations(self, reply: Message, text: str) -> list[Message]:
        return [{"role": "user", "content": text}]
