"""Our loop of a step that is measured beside verl's own `ToolAgentLoop` (`verls_loop.py`), as verl's workers load it.

Both get the same rows and ask the same engine. A reply with a fenced block is one command, as for the agent `shell`;
a command takes the same scripted time, is answered with the same text, and solves as often. Starting sandboxes and
grading, which verl's loop has none of, wait for nothing. verl's loop leaves the last turn's command alone; ours runs
it, since the files are graded, and here it takes no time. Each rollout leaves a line about its tokens and calls, and
each command that takes time one.
"""

import asyncio
import dataclasses
import functools
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
TOKENS, COMMANDS = "tokens.jsonl", "commands.jsonl"
NOWHERE = Path("/nonexistent")


def tool_seconds() -> float:
    return float(os.environ[TOOL_SECONDS_VARIABLE])


@functools.cache
def job() -> RolloutJob:
    return load_job()


def write_tokens(sampled: int, trained: int, calls: int) -> None:
    json_lines.append(job().run_dir / TOKENS, [json.dumps({"sampled": sampled, "trained": trained, "calls": calls})])


async def run_command() -> str:
    """What a command takes, and what it answers."""
    await asyncio.sleep(tool_seconds())
    json_lines.append(job().run_dir / COMMANDS, ["{}"])
    return ANSWER


@register("remote_agent")
class Ours(RemoteAgentLoop):
    """`RemoteAgentLoop`, in the sandboxes below."""

    @override
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        outputs = await super().run(sampling_params, **row)
        details = outputs[-1].extra_fields["reward_extra_info"] if outputs else {"sampled_tokens": 0, "turns": 0}
        trained = sum(sum(output.response_mask) for output in outputs)
        write_tokens(int(details["sampled_tokens"]), trained, int(details["turns"]))
        return outputs

    @override
    def request_of(
        self, job: RolloutJob, phase: Phase, sampling_params: Mapping[str, Any], row: Mapping[str, Any]
    ) -> RolloutRequest:
        request = super().request_of(job, phase, sampling_params, row)
        return dataclasses.replace(request, environment=EnvironmentSpec(import_path=f"{__name__}:ScriptedEnvironment"))


class ScriptedEnvironment(LoglessEnvironment):
    """Harbor's environment over sandboxes in which the agent's commands wait, and nothing else does."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        provider = ScriptedProvider(Delays(0.0, 0.0, 0.0), faulty=False)
        self._scope = SandboxScope(provider, OneImage(NOWHERE, 0), self._scope.run_id)


class ScriptedProvider(WaitingProvider):
    @override
    async def acquire(self, spec: SandboxSpec) -> Sandbox:
        sandbox = ScriptedSandbox(self, dataclasses.replace(spec, sandbox_id=f"r0-1-{spec.sandbox_id}"))
        sandbox.write(f"{FOLDER}/calc.txt", WRONG)
        return sandbox


class ScriptedSandbox(WaitingSandbox):
    """Answers what graders ask, and the agent's commands with one text."""

    def __init__(self, provider: WaitingProvider, spec: SandboxSpec) -> None:
        super().__init__(provider, spec)
        self._commands = 0

    @override
    async def exec(self, command: Command, **options: Any) -> ExecResult:
        is_agents = isinstance(command, str) and not ("test.sh" in command or command.startswith(("mkdir", "chmod")))
        if is_agents:
            self._commands += 1
            is_last = self._commands >= job().rollout.agent.max_turns
            return ExecResult(0, (ANSWER if is_last else await run_command()).encode(), b"")
        if isinstance(command, str) and "test.sh" in command:
            self.write(f"{FOLDER}/calc.txt", random.choice((RIGHT, WRONG)))
        return await super().exec(command, **options)
