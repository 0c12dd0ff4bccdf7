"""The agent of the mathematics profile outside of verl: a tool that runs Python, and a last reply with the answer.

The same agent as verl's ToolAgentLoop with `SandboxTool`: the same tool, the same reading of the code, the same words
for what it printed, and the last turn's call is not run since nobody would read its output. The last reply is left in
the sandbox, in the working folder's `answer.txt`, for the task's checker.
"""

import base64
import json
from typing import Any, ClassVar, override

from harbor.environments.base import BaseEnvironment, ExecResult

from agentic.rollout.agents.chat import Message
from agentic.rollout.agents.code_text import CODE_TOOL, NO_CODE, extract_code, print_last_expression, shown
from agentic.rollout.agents.commands import TurnAgent, run_command, tool_messages
from agentic.rollout.agents.inside_program import TIMEOUT_EXIT_CODE, cut_middle
from agentic.tasks.problems.problem import ANSWER_FILE

LONGEST_ANSWER_BYTES = 60_000
"""Its end counts: a command line holds no more."""
ONE_CALL = "not run: one call a turn"


class CodeInterpreterAgent(TurnAgent):
    """Code of each reply is run in the sandbox, until a reply has none."""

    tools: ClassVar[tuple[Message, ...]] = (CODE_TOOL,)

    @staticmethod
    @override
    def name() -> str:
        return "code-interpreter"

    @override
    async def answers(self, reply: Message, environment: BaseEnvironment, *, is_last: bool) -> list[Message] | None:
        calls = reply.get("tool_calls") or []
        if not calls or is_last:
            await self._leave(environment, str(reply.get("content") or ""))
            return None
        return tool_messages(calls, await self._result(environment, calls[0].get("function") or {}), ONE_CALL)

    async def _leave(self, environment: BaseEnvironment, text: str) -> None:
        content = _encoded(text.encode(errors="replace")[-LONGEST_ANSWER_BYTES:])
        await run_command(environment, f"echo {content} | base64 -d > {ANSWER_FILE}", self.command_timeout_seconds)

    async def _result(self, environment: BaseEnvironment, function: dict[str, Any]) -> str:
        if function.get("name") != CODE_TOOL["function"]["name"]:
            return f"Unknown function '{function.get('name')}'. Available tools: ['code_interpreter']"
        try:
            code = json.loads(function.get("arguments") or "")["code"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return NO_CODE
        if not isinstance(code, str):
            return NO_CODE
        run = print_last_expression(extract_code(code)).encode(errors="replace")
        if len(run) > LONGEST_ANSWER_BYTES:
            return f"Error: the code has more than {LONGEST_ANSWER_BYTES} bytes"
        command = f"echo {_encoded(run)} | base64 -d | python3 -u -"
        return self._text(await run_command(environment, command, self.command_timeout_seconds))

    def _text(self, result: ExecResult) -> str:
        is_late = result.return_code == TIMEOUT_EXIT_CODE
        note = f"stopped after {self.command_timeout_seconds:g} s" if is_late else ""
        return cut_middle(shown(result.stdout or "", result.stderr or "", note), self.output_characters)


def _encoded(content: bytes) -> str:
    """As a word of the shell."""
    return base64.b64encode(content).decode() or "''"
