"""What running commands in a sandbox means, whether they go through the API server or straight to an exec server.

`PodExec` and `ServerExec` implement `SandboxExec`. A provider's sandbox holds one and stays lost once it raised
SandboxLostError.
"""

import re
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agentic.sandbox.base import Command, ExecResult

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

type Sink = Callable[[bytes], Awaitable[None]]
"""Takes standard output as it comes; while it waits, the command is held back."""


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command and all that belongs to it."""

    command: Command
    timeout_seconds: float
    output_limit_bytes: int = 1024 * 1024
    """Of each output: the first and the last half are kept. Standard output given to a sink does not count."""
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the container's."""
    user: str | None = None
    """Name or id; None, or the container's own, needs no right. Another needs a root user that may change ids."""
    stdin: bytes | AsyncIterable[bytes] = b""
    sink: Sink | None = None
    """Receives standard output instead of the result."""

    def require_names(self) -> None:
        """Raises ValueError for an environment that no shell can hold."""
        for name in self.env:
            if not ENV_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name for an environment variable: use letters, digits and '_'")


class SandboxExec(Protocol):
    """Runs commands in one sandbox."""

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run to the end. Cancelling the call, and running out of time, kill the command and what it started inside
        the sandbox. Raises SandboxLostError when its end cannot be known; never makes up an exit code."""
        ...

    async def end_commands(self) -> None:
        """End every process but the container's first, as `Sandbox.end_commands` says."""
        ...

    async def close(self) -> None:
        """Let go of connections; the sandbox goes on. May be repeated."""
        ...
