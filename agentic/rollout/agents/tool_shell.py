"""The same agent for models that call tools: one function `bash`, the output comes back as the tool's message."""

import json
from typing import ClassVar, override

from agentic.rollout.agents.chat import Message
from agentic.rollout.agents.commands import CommandAgent, tool_messages
from agentic.rollout.agents.inside_program import SUBMIT


class ToolShellAgent(CommandAgent):
    """One call of `bash` a turn; further calls in the same reply are not run, and a reply without one is told so."""

    tools: ClassVar[tuple[Message, ...]] = (
        {
            "type": "function",
            "function": {
                "name": "bash",
                "description": f"Run a shell command in the repository. The command `{SUBMIT}` ends the work.",
                "parameters": {
                    "type": "object",
                    "properties": {"command": {"type": "string"}},
                    "required": ["command"],
                },
            },
        },
    )

    @staticmethod
    @override
    def name() -> str:
        return "tool-shell"

    @override
    def command_of(self, reply: Message) -> str | None:
        calls = reply.get("tool_calls") or []
        function = calls[0].get("function", {}) if calls else {}
        if function.get("name") != "bash":
            return None
        try:
            command = json.loads(function.get("arguments") or "")["command"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return command.strip() or None if isinstance(command, str) else None

    @override
    def observations(self, reply: Message, text: str) -> list[Message]:
        calls = reply.get("tool_calls") or []
        if not calls:
            return [{"role": "user", "content": text}]
        return tool_messages(calls, text, "not run: one command a turn")
