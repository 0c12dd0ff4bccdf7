"""Commands in a pod through the API server: one WebSocket each, no thread, no shell but the sandbox's own.

Promises, beyond those of `SandboxExec`:
- the exit code is what the wrapper or the status channel says. A stream that breaks, a container that died under the
  command or was restarted since the last one raise SandboxLostError, never an exit code;
- a command whose time is over, whose call is cancelled or whose stream broke is killed inside, by a second exec;
- what a command leaves in the background keeps its outputs, which are read and thrown away, as long as this object
  lives: closing them would kill it at its next write.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from agentic.cluster.api import KubeApi
from agentic.cluster.channels import Channel, ExecChannels, ExecStatus
from agentic.cluster.errors import ApiUnavailableError, ExecStreamLostError, InvalidObjectError, NotFoundError, one_line
from agentic.sandbox.base import TIMEOUT_EXIT_CODE, ExecResult
from agentic.sandbox.errors import SandboxLostError
from agentic.sandbox.kube.execution import ExecRequest, Sink
from agentic.sandbox.kube.wrapper import END_ALL, KILL, Marked, WrappedCommand, wrap
from agentic.sandbox.local.spawner.output import Capture

KILL_SECONDS = 15.0
"""For a kill inside: a sandbox that does not answer for so long is lost."""
MOST_LEFTOVERS = 32
"""Streams of ended commands that background processes still hold; more, and the oldest is let go."""
FRAME_BYTES = 4 * 1024 * 1024
"""Of input over v4, which cannot say that input ends."""
GONE = (NotFoundError, InvalidObjectError, ApiUnavailableError, ExecStreamLostError)


@dataclass(frozen=True, slots=True)
class PodTarget:
    """A container."""

    pod: str
    container: str = ""
    """Empty is the pod's only one."""
    namespace: str | None = None
    """None is the client's."""

    def __str__(self) -> str:
        return f"sandbox {self.pod}"


@dataclass(slots=True)
class Running:
    """What is known of a command under way."""

    wrapped: WrappedCommand
    stdout: Marked
    stderr: Marked
    kept_stdout: Capture
    kept_stderr: Capture
    sink: Sink | None
    status: ExecStatus | None = None

    @property
    def session(self) -> str:
        return self.stderr.marks[0][0] if self.stderr.marks and self.stderr.marks[0] else ""

    @property
    def born(self) -> str:
        """When the sandbox's first process started; empty while unknown."""
        return self.stderr.marks[0][1] if self.stderr.marks and len(self.stderr.marks[0]) > 1 else ""

    @property
    def exit_code(self) -> int | None:
        """As marked on both outputs."""
        if not self.stdout.marks or len(self.stderr.marks) < 2:
            return None
        words = self.stdout.marks[-1]
        return int(words[0]) if words and words[0].isdigit() else None


@dataclass(slots=True)
class PodExec:
    """Runs commands in one pod."""

    api: KubeApi
    target: PodTarget
    _born: str = ""
    _leftovers: deque[asyncio.Task[None]] = field(default_factory=deque)

    async def run(self, request: ExecRequest) -> ExecResult:
        wrapped, limit = wrap(request), request.output_limit_bytes
        running = Running(
            wrapped, Marked(wrapped.mark), Marked(wrapped.mark), Capture(limit), Capture(limit), request.sink
        )
        try:
            async with AsyncExitStack() as stack:
                channels = await stack.enter_async_context(self._start(wrapped))
                timed_out = await self._follow(channels, request, running)
                self._drain_later(stack.pop_all(), channels, running)
        except GONE as error:
            await self._kill_quietly(running)
            raise SandboxLostError(f"{self.target} is lost: {error}") from error
        await self._check_identity(running)
        return await self._result(running, timed_out)

    def _start(self, wrapped: WrappedCommand) -> "contextlib.AbstractAsyncContextManager[ExecChannels]":
        return self.api.exec(
            self.target.pod,
            wrapped.words,
            namespace=self.target.namespace,
            container=self.target.container,
            has_stdin=wrapped.has_stdin,
        )

    async def _follow(self, channels: ExecChannels, request: ExecRequest, running: Running) -> bool:
        """Until the end is known; whether time ran out before."""
        feeding = asyncio.create_task(self._feed(channels, request, running.wrapped))
        reading = asyncio.create_task(self._read(channels, running))
        try:
            async with asyncio.timeout(request.timeout_seconds):
                await asyncio.wait({reading, feeding}, return_when=asyncio.FIRST_EXCEPTION)
                if feeding.done() and not reading.done():
                    feeding.result()
                await reading
            return False
        except TimeoutError:
            await self._kill(running)
            await asyncio.wait({reading}, timeout=1.0)
            return True
        except ExecStreamLostError:
            raise
        except BaseException:
            await asyncio.shield(self._kill_quietly(running))
            raise
        finally:
            for task in (feeding, reading):
                task.cancel()
            await asyncio.gather(feeding, reading, return_exceptions=True)

    async def _feed(self, channels: ExecChannels, request: ExecRequest, wrapped: WrappedCommand) -> None:
        if not wrapped.has_stdin:
            return
        await channels.send(wrapped.header(not channels.can_close_stdin))
        if channels.can_close_stdin:
            async for chunk in _chunks(request.stdin):
                await channels.send(chunk)
            await channels.close_stdin()
            return
        async for frame in _frames(_chunks(request.stdin)):
            await channels.send(b"%d\n" % len(frame))
            await channels.send(frame)
        await channels.send(b"0\n")

    async def _read(self, channels: ExecChannels, running: Running) -> None:
        while running.exit_code is None:
            message = await channels.receive()
            if isinstance(message, ExecStatus):
                running.status = message
                break
            if message.channel is Channel.STDERR:
                running.kept_stderr.feed(running.stderr.feed(message.data))
                continue
            data = running.stdout.feed(message.data)
            if running.sink is None:
                running.kept_stdout.feed(data)
            elif data:
                await running.sink(data)
        running.kept_stderr.feed(running.stderr.rest())
        rest = running.stdout.rest()
        if running.sink is None:
            running.kept_stdout.feed(rest)
        elif rest:
            await running.sink(rest)

    async def _result(self, running: Running, timed_out: bool) -> ExecResult:
        stdout, stderr = running.kept_stdout, running.kept_stderr
        truncated = stdout.is_truncated or stderr.is_truncated
        code = TIMEOUT_EXIT_CODE if timed_out else running.exit_code
        if code is None:
            code = await self._unmarked_code(running)
        return ExecResult(code, stdout.value(), stderr.value(), timed_out, truncated)

    async def _unmarked_code(self, running: Running) -> int:
        """The wrapper itself was killed: by somebody inside, or with its whole container?"""
        status = running.status
        if status is None or status.exit_code is None or not running.session:
            said = status.message if status else "its stream ended"
            words = one_line(running.kept_stderr.value().decode(errors="replace"))
            raise SandboxLostError(f"{self.target} is lost: no command could be followed in it: {said}; {words}")
        probe = await self.run(ExecRequest(["true"], timeout_seconds=KILL_SECONDS))
        if probe.exit_code != 0:
            raise SandboxLostError(f"{self.target} is lost: it no longer runs commands")
        return status.exit_code

    async def _check_identity(self, running: Running) -> None:
        born, known = running.born, self._born
        self._born = known or born
        if born and known and born != known:
            raise SandboxLostError(f"{self.target} is lost: its container was restarted, and its files are gone")

    async def _kill(self, running: Running) -> None:
        """End what the command started. Raises one of GONE when that cannot be done."""
        words = ("/bin/sh", "-c", KILL, "sh", running.wrapped.mark, running.session or "none")
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._run_plain(words)
        except TimeoutError:
            raise ExecStreamLostError(f"a command could not be killed within {KILL_SECONDS:.0f} s") from None

    async def _kill_quietly(self, running: Running) -> None:
        with contextlib.suppress(*GONE):
            await self._kill(running)

    async def _run_plain(self, words: tuple[str, ...]) -> int | None:
        """Without a wrapper; returns the exit code."""
        target = self.target
        async with self.api.exec(target.pod, words, namespace=target.namespace, container=target.container) as channels:
            while True:
                message = await channels.receive()
                if isinstance(message, ExecStatus):
                    return message.exit_code

    async def end_commands(self) -> None:
        try:
            async with asyncio.timeout(KILL_SECONDS):
                code = await self._run_plain(("/bin/sh", "-c", END_ALL))
        except TimeoutError:
            raise SandboxLostError(f"{self.target} is lost: its processes did not end") from None
        except GONE as error:
            raise SandboxLostError(f"{self.target} is lost: {error}") from error
        if code != 0:
            raise SandboxLostError(f"{self.target} is lost: its processes did not end")

    def _drain_later(self, stack: AsyncExitStack, channels: ExecChannels, running: Running) -> None:
        self._leftovers = deque(task for task in self._leftovers if not task.done())
        self._leftovers.append(asyncio.create_task(_drain(stack, channels, running)))
        if len(self._leftovers) > MOST_LEFTOVERS:
            self._leftovers.popleft().cancel()

    async def close(self) -> None:
        leftovers, self._leftovers = self._leftovers, deque()
        for task in leftovers:
            task.cancel()
        await asyncio.gather(*leftovers, return_exceptions=True)


async def _drain(stack: AsyncExitStack, channels: ExecChannels, running: Running) -> None:
    async with stack:
        with contextlib.suppress(ExecStreamLostError):
            while running.status is None:
                message = await channels.receive()
                running.status = message if isinstance(message, ExecStatus) else None


async def _chunks(stdin: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(stdin, bytes):
        yield stdin
        return
    async for chunk in stdin:
        yield chunk


async def _frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Of useful size: each costs a process inside."""
    frame = b""
    async for chunk in chunks:
        frame += chunk
        if len(frame) >= FRAME_BYTES:
            yield frame
            frame = b""
    if frame:
        yield frame
