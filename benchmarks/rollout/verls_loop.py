"""verl's own `ToolAgentLoop` in the place of ours.

The rows of the data set ask for `remote_agent`. Importing what both loops share registers ours by that name, so verl's
takes the name after it, by being a module of its own. What the policy reads is, token for token, what our agent shows
it: a command's output as a user's message, after the line end that the template puts behind a reply.
"""

import json
import random
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, ToolListWrap, register
from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema

from agentic.rollout.agents.inside_program import NO_COMMAND, SUBMIT, command_of, output_text

from .step_loops import job, run_command, write_tokens

CHAT_ML = "qwen2"
"""The family of models whose template is the policy's too."""


class Fenced(ToolParser):  # type: ignore[misc]
    """One fenced block is one call of `bash`; submitting is none."""

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[Any]]:
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        if command_of(text) == SUBMIT:
            return text, []
        return text, [FunctionCall(name="bash", arguments=json.dumps({"command": command_of(text) or ""}))]


@register("remote_agent")
class Verls(ToolAgentLoop):  # type: ignore[misc]
    """verl's own loop; of it is changed what it is told (parser, tools, turns), and that it counts."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "tools": ToolListWrap([bash_tool()]), "hf_model_type": CHAT_ML})
        self.tool_schemas = []
        self.tool_parser = Fenced(self.tokenizer)
        self.max_assistant_turns = job().rollout.agent.max_turns
        self._sampled = self._calls = 0

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        settings = job().rollout
        limit = min(settings.agent.max_tokens, settings.max_call_tokens or self.response_length)
        output = await super().run({**sampling_params, "max_tokens": limit}, **row)
        output.reward_score = float(random.random() < 0.5)
        write_tokens(self._sampled, sum(output.response_mask), self._calls)
        return output

    async def _handle_generating_state(self, agent_data: Any, *arguments: Any, **keywords: Any) -> AgentState:
        state = await super()._handle_generating_state(agent_data, *arguments, **keywords)
        self._sampled += len(agent_data.response_ids)
        self._calls += 1
        return state

    async def ct_merge_context_msg(self, previous: Any, updated: Any, *arguments: Any, **keywords: Any) -> Any:
        return await super().ct_merge_context_msg(_of_users(previous), _of_users(updated), *arguments, **keywords)


def _of_users(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**message, "role": "user"} if message["role"] == "tool" else message for message in messages]


def bash_tool() -> FunctionTool:
    async def bash(command: str) -> str:
        return output_text(await run_command(), 0, job().rollout.agent.output_characters) if command else NO_COMMAND

    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    function = {"name": "bash", "description": "Run a command.", "parameters": parameters}
    schema = OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})
    return FunctionTool("bash", bash, schema, is_async=True)
