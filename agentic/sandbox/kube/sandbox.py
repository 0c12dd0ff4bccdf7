"""One sandbox in a pod: commands and files over the API server, and the reason when it is lost.

Once lost, it stays lost, whatever the pod does later. A command's channel breaking tells that something happened; what
happened is asked of the pod's state, which the watch knows a moment later.
"""

import asyncio
import contextlib
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from agentic.cluster.errors import WaitTimeoutError
from agentic.cluster.watching import Watcher
from agentic.errors import AgenticError
from agentic.sandbox.base import Command, ExecResult, SandboxSpec
from agentic.sandbox.errors import SandboxExhaustedError, SandboxLostError, SandboxStartError
from agentic.sandbox.kube.execution import ExecRequest, SandboxExec
from agentic.sandbox.kube.transfers import Transfers
from agentic.sandbox.kube.verdict import Loss, container_id_of, why_lost
from agentic.sandbox.settings import KubeSandbox

REASON_SECONDS = 3.0
"""How long the watch may take to tell why a pod is gone."""

RELEASED = Loss("it was released")

PREPARE = 'mkdir -p -- "$1"'
"""Run as `sh -c PREPARE sh FOLDER`."""


class RemoteSandbox:
    """A `Sandbox` in a pod."""

    def __init__(
        self,
        spec: SandboxSpec,
        name: str,
        pod: str,
        *,
        settings: KubeSandbox,
        channel: SandboxExec,
        transfers: Transfers,
        pods: Watcher,
        give_back: Callable[[], Awaitable[None]],
    ) -> None:
        self.spec = spec
        self.name = name
        self._pod = pod
        self._settings, self._channel, self._transfers, self._pods = settings, channel, transfers, pods
        self._give_back = give_back
        self._container = container_id_of(pods.objects.get(pod, {}))
        self._lost: Loss | None = None
        self._release: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Make the folder that commands start in. Raises SandboxStartError."""
        if self.spec.workdir is None:
            return
        words = ["/bin/sh", "-c", PREPARE, "sh", self.spec.workdir]
        try:
            result = await self._run(ExecRequest(words, timeout_seconds=self._settings.command_timeout_seconds))
        except SandboxLostError as error:
            raise SandboxStartError(f"sandbox {self.name} was not prepared: {error}") from error
        if result.exit_code != 0:
            raise SandboxStartError(f"sandbox {self.name} was not prepared: {result.error_text.strip()[-300:]}")

    async def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        user: str | int | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        settings = self._settings
        request = ExecRequest(
            command,
            timeout_seconds=settings.command_timeout_seconds if timeout_seconds is None else timeout_seconds,
            output_limit_bytes=settings.output_limit_bytes,
            cwd=self._inside(cwd or "."),
            env={**self.spec.env, **(env or {})},
            user=None if user is None else str(user),
            stdin=stdin,
        )
        return await self._run(request)

    def _inside(self, path: str) -> str:
        return posixpath.join(self.spec.workdir or ".", path)

    async def _run(self, request: ExecRequest) -> ExecResult:
        self._require_alive()
        try:
            return await self._channel.run(request)
        except SandboxLostError as error:
            raise await self._lose(error) from error

    def _require_alive(self) -> None:
        if self._lost is None and self._release is not None:
            self._lost = RELEASED
        if self._lost is not None:
            raise self._say(self._lost)

    async def _lose(self, error: SandboxLostError) -> SandboxLostError:
        """Remember that it is lost, and why if that can be learnt."""
        if self._release is None:
            self._lost = await self._reason() or Loss(str(error))
        return self._say(self._lost or RELEASED)

    def _say(self, loss: Loss) -> SandboxLostError:
        kind = SandboxExhaustedError if loss.is_own_doing else SandboxLostError
        return kind(f"sandbox {self.name} is lost: {loss.reason}")

    async def _reason(self) -> Loss | None:
        with contextlib.suppress(WaitTimeoutError, AgenticError):
            return await self._pods.wait_for(
                self._pod, lambda pod: why_lost(pod, self._container), timeout_seconds=REASON_SECONDS
            )
        return None

    async def end_commands(self) -> None:
        self._require_alive()
        try:
            await self._channel.end_commands()
        except SandboxLostError as error:
            raise await self._lose(error) from error

    async def upload(self, source: Path, target: str) -> None:
        self._require_alive()
        try:
            await self._transfers.upload(self._channel, source, self._inside(target))
        except SandboxLostError as error:
            raise await self._lose(error) from error

    async def download(self, source: str, target: Path) -> None:
        self._require_alive()
        limit = self._settings.download_limit_bytes
        try:
            await self._transfers.download(self._channel, self._inside(source), target, limit_bytes=limit)
        except SandboxLostError as error:
            raise await self._lose(error) from error

    async def release(self) -> None:
        """Cancelling the call does not stop it: what runs in a cluster costs until it is given back."""
        if self._release is None:
            self._release = asyncio.create_task(self._end(), name=f"release {self.name}")
        await asyncio.shield(self._release)

    async def _end(self) -> None:
        await self._channel.close()
        await self._give_back()
