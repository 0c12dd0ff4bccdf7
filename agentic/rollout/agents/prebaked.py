"""What Harbor's installed agents need to run in our sandboxes: tools that are there already, and a way to the model.

Harbor's own class does the work: its command line, its configuration files, its reading of logs. Replaced is what would
fetch or reach something else than the session:
- `install` checks that the prebaked tools are in the sandbox, and fetches nothing;
- the base URL is that of a relay on loopback where a proxy's socket is let in, else the session's own address;
- the key is in the environment of the agent's commands alone, on no command line, and in no file once the run is over;
- at its end, however it ends, every process that it left is ended, the relay included.

However the agent's program ends, and whatever it printed or wrote, the trial is graded by what is there: the policy
runs commands beside it, so its words, its files and its exit code are the policy's too. Whether a model that did not
answer was behind it, is for the session to say, which knows (see `outcomes.py`).
"""

import asyncio
import contextlib
import json
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, override
from urllib.parse import urlsplit, urlunsplit

from harbor.agents.installed.base import BaseInstalledAgent, NonZeroAgentExitCodeError
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from agentic.rollout.agents import relay
from agentic.rollout.agents.chat import ChatEndpoint
from agentic.rollout.agents.tools import inside_folder
from agentic.rollout.errors import AgentProgramError, RolloutConfigError
from agentic.rollout.proxy_socket import PARENT_INSIDE, SOCKET_INSIDE
from agentic.sandbox.harbor_environment import SandboxEnvironment

MODEL = "policy"
"""What agents call the model; the session decides what answers."""

PROGRAM_SECONDS = 7 * 24 * 3600
"""Beyond any trial: its clock ends the program, not the sandbox's limit for one command."""

CLEANUP_SECONDS = 10.0
"""For ending what an agent left behind: a sandbox that does not answer is the trial's trouble, which says so itself."""

_RELAY = f"{PARENT_INSIDE}/relay.py"
_START_RELAY = f"if [ -S {SOCKET_INSIDE} ]; then python3 -I -S {_RELAY} {SOCKET_INSIDE}; fi"


class PrebakedAgent(BaseInstalledAgent):  # type: ignore[misc]
    """Goes before Harbor's class in the bases of each agent."""

    tools: ClassVar[str | None] = None
    """Name of its folder of tools; None: its image holds them."""
    command: ClassVar[str]
    """The program that has to be there."""
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    """The environment variable that its program takes the key from."""
    url_suffix: ClassVar[str] = "/v1"
    """What of the session's URL the agent does not add itself."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Paths inside where its program may have written the key; removed at the end."""
    variables: ClassVar[tuple[tuple[str, str], ...]] = ()
    """More environment for its commands."""

    def __init__(self, *args: Any, max_turns: int, max_tokens: int, **kwargs: Any) -> None:
        # The session bounds both; Harbor's agents are not told, since each counts them in its own way.
        super().__init__(*args, **kwargs)
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self._endpoint: ChatEndpoint | None = None
        self._web_tools_noop_reported = True  # an error line a trial, for what a sandbox without network cannot have

    def connect(self, endpoint: ChatEndpoint) -> None:
        """Use this endpoint; called once, before the trial runs. Harbor takes both from here each time it needs them,
        and keeps the values of such variables out of what it writes down."""
        self._endpoint = endpoint
        self._extra_env[self.key_variable] = endpoint.api_key
        self._base_url = self._api_url(endpoint.base_url)

    @property
    @override
    def model_connection(self) -> Any:
        """Without a host that Harbor would have the sandbox's network opened for: the way to the session is let in."""
        return replace(super().model_connection, resolved_base_url=None, inferred_base_url=None)

    @property
    def path(self) -> str | None:
        """The folder inside that the agent's program lies in."""
        return f"{inside_folder(self.tools)}/bin" if self.tools else None

    @override
    async def install(self, environment: BaseEnvironment) -> None:
        if self._endpoint is None:
            raise RolloutConfigError(f"agent {self.name()!r} has no endpoint: call connect() before the trial runs")
        found = await environment.exec(command=self._with_path(f"command -v {shlex.quote(self.command)}"))
        if found.return_code != 0:
            raise AgentProgramError(
                f"agent {self.name()} finds no program {self.command!r} in its sandbox: its image has to hold "
                f"{self.path or 'it in PATH'} (see docs/agents.md)"
            )
        port = await self._start_relay(environment)
        if port is not None:
            local = urlsplit(self._endpoint.base_url)._replace(scheme="http", netloc=f"127.0.0.1:{port}")
            self._base_url = self._api_url(urlunsplit(local))

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            await super().run(instruction, environment, context)
        except (ValueError, RecursionError) as error:  # Of output that Harbor's class could not read.
            raise NonZeroAgentExitCodeError(f"{self.name()} left output that cannot be read: {error}") from error
        finally:
            await self._leave(environment)

    @override
    async def exec_as_agent(
        self,
        environment: BaseEnvironment,
        command: str,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout_sec: int | None = None,
    ) -> Any:
        return await super().exec_as_agent(
            environment,
            self._with_path(command),
            env={**dict(self.variables), **(env or {})},
            cwd=cwd,
            timeout_sec=timeout_sec or PROGRAM_SECONDS,
        )

    @override
    def populate_context_post_run(self, context: AgentContext) -> None:
        trajectory = self.logs_dir / "trajectory.json"
        try:
            super().populate_context_post_run(context)
        except Exception as error:  # noqa: BLE001 - the policy can write what is read here: no trial may end by it
            self.logger.warning("no trajectory of %s: %s: %s", self.name(), type(error).__name__, error)
        turns = _turns(trajectory)
        if turns is None:
            trajectory.unlink(missing_ok=True)  # Harbor reads it too.
        context.metadata = {**(context.metadata or {}), "turns": turns or 0}

    def _api_url(self, base_url: str) -> str:
        return base_url.rstrip("/").removesuffix("/v1") + self.url_suffix

    def _with_path(self, command: str) -> str:
        return f"export PATH={self.path}:$PATH; {command}" if self.path else command

    async def _start_relay(self, environment: BaseEnvironment) -> int | None:
        """Its port; None where no socket is let in."""
        with tempfile.TemporaryDirectory(prefix="agentic-relay-") as staging:
            program = Path(staging) / "relay.py"
            program.write_bytes(Path(relay.__file__).read_bytes())
            program.chmod(0o644)
            await environment.upload_file(program, _RELAY)
        started = await environment.exec(command=_START_RELAY)
        if started.return_code != 0:
            raise AgentProgramError(f"no relay in the sandbox: {' '.join((started.stderr or '').split())[-300:]}")
        port = (started.stdout or "").strip()
        return int(port) if port else None

    async def _leave(self, environment: BaseEnvironment) -> None:
        """Also when the trial is cancelled; a sandbox that is gone has left nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEANUP_SECONDS):
                if isinstance(environment, SandboxEnvironment):
                    await environment.end_commands()
                if self.secrets:
                    await environment.exec(command=f"rm -rf {' '.join(self.secrets)}", user="root")


def _turns(trajectory: Path) -> int | None:
    """Replies of the model that the agent itself counts in its trajectory; None when it wrote none that can be read."""
    try:
        steps = json.loads(trajectory.read_text())["steps"]
        return sum(1 for step in steps if step.get("source") == "agent")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
