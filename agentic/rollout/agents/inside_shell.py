"""The plain-text agent inside the sandbox: ships its program there, runs it as one command, and reads how it ended.

The session's key goes in by a file that the program removes before it runs any command; Harbor writes neither the file
nor the key down. However the program ends, the trial is graded by what is there: the policy's commands run beside it,
and could kill it or take its means away. A program that had no answer is lost only if its session says so too (see
`outcomes.py`); in a pod its own word is enough (`ModelUnavailableError`), since there a network lies between the two.
One that never ran is the image's fault or ours (`AgentProgramError`).

The program counts its turns and says so at its end; when the trial's clock ends it, nobody learns them.
"""

import json
import tempfile
from pathlib import Path
from typing import Any, override
from urllib.parse import urlsplit

from harbor.agents.installed.base import (
    ContextWindowExceededError,
    NetworkConnectionError,
    NonZeroAgentExitCodeError,
)
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents import inside_program
from agentic.rollout.agents.commands import ModelAgent
from agentic.rollout.agents.inside_program import Job
from agentic.rollout.errors import AgentProgramError, ModelUnavailableError
from agentic.rollout.proxy_socket import PARENT_INSIDE, SOCKET_INSIDE
from agentic.sandbox.harbor_environment import SandboxEnvironment

FOLDER = "agent"
"""Where program and job lie, below the folder of the socket."""

_START = f"exec python3 -I -S {PARENT_INSIDE}/{FOLDER}/program.py {PARENT_INSIDE}/{FOLDER}/job.json"
"""Isolated, so that neither the task's files nor its environment can lend the program another standard library."""

_PROGRAM_SECONDS = 7 * 24 * 3600
"""Beyond any trial: its clock ends the program, not the sandbox's limit for one command."""

_KILLED = 128
"""Exit codes above it say by which signal."""

_NEVER_RAN = (126, 127)
"""The shell's exit codes for a program that is not there, or is none."""


class InsideShellAgent(ModelAgent):
    """One fenced `bash` block a turn, as with `ShellAgent`; the loop and the commands run inside."""

    @staticmethod
    @override
    def name() -> str:
        return "inside-shell"

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        socket = _socket_of(environment)
        await self._ship(self._job(instruction, socket), environment)
        result = await environment.exec(command=_START, timeout_sec=_PROGRAM_SECONDS)
        report = _report(result)
        context.metadata = {"turns": _turns(report, self.max_turns), "exit_code": result.return_code}
        _raise_for(result, str(report.get("message", "")), NetworkConnectionError if socket else ModelUnavailableError)

    def _job(self, instruction: str, socket: str) -> Job:
        url = urlsplit(self.endpoint.base_url)
        return Job(
            socket=socket,
            address=url.netloc,
            url_path=url.path.rstrip("/") + "/chat/completions",
            api_key=self.endpoint.api_key,
            model=self.endpoint.model,
            instruction=instruction,
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            command_timeout_seconds=self.command_timeout_seconds,
            output_characters=self.output_characters,
        )

    async def _ship(self, job: Job, environment: BaseEnvironment) -> None:
        """Both files in one transfer. Inside, the folder is everybody's: the program may run as any user, and has to be
        able to remove the job. On this side nobody else can enter the folder around it."""
        with tempfile.TemporaryDirectory(prefix="agentic-job-") as staging:
            folder = Path(staging) / FOLDER
            folder.mkdir()
            (folder / "program.py").write_bytes(Path(inside_program.__file__).read_bytes())
            (folder / "job.json").write_text(json.dumps(job._asdict()), encoding="utf-8")
            for path, mode in ((folder / "program.py", 0o644), (folder / "job.json", 0o644), (folder, 0o777)):
                path.chmod(mode)
            await environment.upload_dir(staging, PARENT_INSIDE)


def _socket_of(environment: BaseEnvironment) -> str:
    """Where the proxy's socket is bound; empty in a pod, which reaches the endpoint's own address."""
    is_bound = not isinstance(environment, SandboxEnvironment) or SOCKET_INSIDE in environment.sockets
    return SOCKET_INSIDE if is_bound else ""


def _report(result: ExecResult) -> dict[str, Any]:
    """The program's last line; empty when it did not come to write one. The policy may have written it."""
    try:
        report = json.loads((result.stdout or "").strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _turns(report: dict[str, Any], most: int) -> int:
    turns = report.get("turns")
    return min(max(turns, 0), most) if type(turns) is int else 0


def _raise_for(result: ExecResult, message: str, no_answer: type[Exception]) -> None:
    code = result.return_code
    if code == inside_program.DONE or code > _KILLED:
        return
    if code == inside_program.CONTEXT_SPENT:
        raise ContextWindowExceededError(message)
    if code == inside_program.NO_ANSWER:
        raise no_answer(message)
    detail = (result.stderr or "").strip().rpartition("\n")[2]
    problem = AgentProgramError if code in _NEVER_RAN else NonZeroAgentExitCodeError
    raise problem(f"the agent's program inside the sandbox ended with exit code {code}: {detail[-300:]}")
