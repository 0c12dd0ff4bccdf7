"""The real exec server as process 1 of a bubblewrap sandbox, for tests: no pod around it, everything else is real."""

import asyncio
import os
import shutil
import signal
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kube_pods import BWRAP

from agentic.sandbox.base import ExecResult
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.manifests import PROGRAM
from agentic.sandbox.kube.server_exec import ExecServers, ServerExec

ROOT = Path(__file__).parents[2]
BINARY = ROOT / "build" / "exec-server"


def build() -> Path:
    """What `make exec-server` builds; nothing when it is there."""
    if shutil.which("go") is None and not BINARY.exists():
        pytest.skip("go is not installed: the exec server is not tried")
    newest = max(path.stat().st_mtime for path in (ROOT / "images" / "exec-server").glob("*.go"))
    if not BINARY.exists() or BINARY.stat().st_mtime < newest:
        subprocess.run(["make", "--silent", "exec-server"], cwd=ROOT, check=True)
    return BINARY


class Inside:
    """What hands the key in; in a cluster that is an exec through the API server."""

    async def run(self, request: ExecRequest) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            str(BINARY), *request.command[1:], stdin=-1, stdout=-1, stderr=-1
        )
        stdout, stderr = await process.communicate(request.stdin if isinstance(request.stdin, bytes) else b"")
        return ExecResult(process.returncode or 0, stdout, stderr)

    async def end_commands(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        return


@dataclass
class ExecServerRig:
    """One server; an async context."""

    servers: ExecServers = field(default_factory=ExecServers)
    port: int = 0
    socket: str = field(default_factory=lambda: f"@exec-server-{uuid.uuid4().hex}")
    process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "ExecServerRig":
        binary = await asyncio.to_thread(build)
        listen, report = "127.0.0.1:0", "-report"
        self.process = await asyncio.create_subprocess_exec(
            *BWRAP,
            "--ro-bind",
            str(binary),
            PROGRAM,
            PROGRAM,
            "serve",
            "-listen",
            listen,
            report,
            "-key-socket",
            self.socket,
            stdout=-1,
            start_new_session=True,
        )
        if self.process.stdout is None:
            raise RuntimeError("the exec server has no output")
        self.port = int((await self.process.stdout.readline()).decode().rpartition(":")[2])
        return self

    async def connect(self) -> ServerExec:
        program = (PROGRAM,)
        return await self.servers.connect("s1", "127.0.0.1", KeyWords(self.socket), port=self.port, program=program)

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    async def __aexit__(self, *_: object) -> None:
        await self.servers.close()
        self.kill()
        if self.process is not None:
            await self.process.communicate()


class KeyWords(Inside):
    """Names the socket of this very server: tests share one network."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def run(self, request: ExecRequest) -> ExecResult:
        words = [*request.command, "-key-socket", self._socket]
        return await super().run(ExecRequest(words, request.timeout_seconds, stdin=request.stdin))
