"""Our loop of a step that is measured beside verl's own `ToolAgentLoop` (`verls_loop.py`), as verl's workers load it.

Both get the same rows and ask the same engine. A reply with a fenced block is one command, as for the agent `shell`;
a command takes the same scripted time, is answered with the same text, and solves as often. Starting sandboxes and
grading, which verl's loop has none of, wait for nothing. Each rollout leaves a line about its tokens.
"""

import asyncio
import dataclasses
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register

from agentic import json_lines
from agentic.rollout.agent_loop import RemoteAgentLoop
from agentic.rollout.agent_loop_config import RolloutJob, load_job
from agentic.rollout.environment import LoglessEnvironment
from agentic.rollout.records import Phase
from agentic.rollout.rollouts import RolloutRequest
from agentic.rollout.trial import EnvironmentSpec
from agentic.sandbox.base import Command, ExecResult, Sandbox, SandboxSpec
from agentic.sandbox.harbor_environment import SandboxScope

from .world import FOLDER, RIGHT, WRONG, Delays, OneImage, WaitingProvider, WaitingSandbox

TOOL_SECONDS_VARIABLE = "BENCHMARK_TOOL_SECONDS"
ANSWER = "1 - 2\n"
TOKENS = "tokens.jsonl"
NOWHERE = Path("/nonexistent")


def tool_seconds() -> float:
    return float(os.environ[TOOL_SECONDS_VARIABLE])


def write_tokens(folder: Path, sampled: int, trained: int) -> None:
    json_lines.append(folder / TOKENS, [json.dumps({"sampled": sampled, "trained": trained})])


@register("remote_agent")
class Ours(RemoteAgentLoop):
    """`RemoteAgentLoop`, in the sandboxes below."""

    @override
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        outputs = await super().run(sampling_params, **row)
        sampled = sum(
            int(output.extra_fields.get("reward_extra_info", {}).get("sampled_tokens", 0)) for output in outputs
        )
        write_tokens(load_job().run_dir, sampled, sum(sum(output.response_mask) for output in outputs))
        return outputs

    @override
    def request_of(
        self, job: RolloutJob, phase: Phase, sampling_params: Mapping[str, Any], row: Mapping[str, Any]
    ) -> RolloutRequest:
        request = super().request_of(job, phase, sampling_params, row)
        return dataclasses.replace(request, environment=EnvironmentSpec(import_path=f"{__name__}:ScriptedEnvironment"))


class ScriptedEnvironment(LoglessEnvironment):
    """Harbor's environment over sandboxes in which commands wait, and nothing else does."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        provider = ScriptedProvider(Delays(0.0, tool_seconds(), 0.0), faulty=False)
        self._scope = SandboxScope(provider, OneImage(NOWHERE, 0), self._scope.run_id)


class ScriptedProvider(WaitingProvider):
    @override
    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        sandbox = ScriptedSandbox(self, dataclasses.replace(spec, sandbox_id=f"r0-1-{spec.sandbox_id}"))
        sandbox.write(f"{FOLDER}/calc.txt", WRONG)
        return sandbox


class ScriptedSandbox(WaitingSandbox):
    """Answers what graders ask, and the agent's commands with one text."""

    @override
    async def exec(self, command: Command, **options: Any) -> ExecResult:
        is_agents = isinstance(command, str) and not ("test.sh" in command or command.startswith(("mkdir", "chmod")))
        if is_agents:
            await asyncio.sleep(self._delays.command)
            return ExecResult(0, ANSWER.encode(), b"")
        if isinstance(command, str) and "test.sh" in command:
            self.write(f"{FOLDER}/calc.txt", random.choice((RIGHT, WRONG)))
        return await super().exec(command, **options)
