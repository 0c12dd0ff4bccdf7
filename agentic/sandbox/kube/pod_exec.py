"""Commands in a pod through the API server: one WebSocket each, no thread, no shell but the sandbox's own.

Promises, beyond those of `SandboxExec`:
- the exit code is what the wrapper or the status channel says. A stream that breaks, a container that died under the
  command or was restarted since the last one raise SandboxLostError, never an exit code;
- a command runs once at most: it waits for a word that is sent when its stream is open for certain;
- a command whose time is over, whose call is cancelled or whose stream broke is killed inside, by a second exec;
- what a command leaves in the background keeps its outputs, which are read and thrown away, as long as this object
  lives: closing them would kill it at its next write.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field

from agentic.cluster.api import KubeApi
from agentic.cluster.channels import Channel, ExecChannels, ExecStatus
from agentic.cluster.errors import ApiUnavailableError, ExecStreamLostError, InvalidObjectError, NotFoundError, one_line
from agentic.sandbox.base import TIMEOUT_EXIT_CODE, ExecResult
from agentic.sandbox.errors import SandboxLostError
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.wrapper import AWAITS_GO, END_ALL, GO, KILL, STILL_THERE, Marked, WrappedCommand, wrap
from agentic.sandbox.local.spawner.output import Capture

START_SECONDS = 180.0
"""Between a stream's opening and its command's beginning, on a node with hundreds of others in line. A command's own
time begins when it does: a busy node is no fault of an agent's."""
KILL_SECONDS = 60.0
"""For a kill inside, which waits in the same line; a sandbox that does not answer for so long is lost."""
QUIET_KILL_SECONDS = 15.0
"""For a kill on the way out, which nobody should have to wait for long."""
MOST_LEFTOVERS = 32
"""Streams of ended commands that background processes still hold; more, and the oldest is let go."""
FRAME_BYTES = 4 * 1024 * 1024
"""Of input over v4, which cannot say that input ends."""
SHORT_BYTES = 16 * 1024
"""Of input that goes along with the command's beginning: every connection takes so much at once."""
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

    request: ExecRequest
    wrapped: WrappedCommand
    stdout: Marked
    stderr: Marked
    kept_stdout: Capture
    kept_stderr: Capture
    connected: "asyncio.Future[None]"
    """Failed when the command was never started."""
    ended: "asyncio.Future[None]"
    """Failed when its end will not be known."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the command runs, or never will."""
    status: ExecStatus | None = None

    def take_over(self, attending: "asyncio.Task[None]") -> None:
        """Tell whoever waits for the command what ended its stream."""
        self.begun.set()
        future = self.ended if self.connected.done() else self.connected
        if attending.cancelled():
            future.cancel()
        elif (error := attending.exception()) is not None and not future.done():
            future.set_exception(error)

    def take_over_source(self, feeding: "asyncio.Task[None]") -> None:
        """A source of input that fails fails the command. A stream that broke is found out by reading as well, unless
        the command has ended without reading all of its input."""
        if not feeding.cancelled() and not self.ended.done():
            error = feeding.exception()
            if error is not None and not isinstance(error, ExecStreamLostError):
                self.ended.set_exception(error)

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
    _attending: "deque[asyncio.Task[None]]" = field(default_factory=deque)
    """One for each stream that is open."""
    _probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Ending all commands would end a probe as well."""

    async def run(self, request: ExecRequest) -> ExecResult:
        running = make_running(request)
        attending = asyncio.create_task(self._attend(running))
        attending.add_done_callback(running.take_over)
        try:
            await running.connected
            timed_out = await self._until_end(running)
        except GONE as error:
            await self._kill_quietly(running)
            raise SandboxLostError(f"{self.target} is lost: {error}") from error
        except BaseException:
            attending.cancel()
            if running.connected.done():
                await asyncio.shield(self._kill_quietly(running))
            raise
        self._keep(attending)
        self._check_identity(running)
        return await self._result(running, timed_out)

    async def _until_end(self, running: Running) -> bool:
        """Whether time ran out before the end."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await running.begun.wait()
        except TimeoutError:
            raise ExecStreamLostError(f"a command did not begin within {START_SECONDS:.0f} s") from None
        try:
            async with asyncio.timeout(running.request.timeout_seconds):
                await running.ended
            return False
        except TimeoutError:
            await self._kill(running)
            await asyncio.wait({running.ended}, timeout=1.0)
            return True

    async def _attend(self, running: Running) -> None:
        """The command's stream from its opening until nobody inside holds it any more."""
        async with self._open(running.wrapped.words, closes_stdin=running.wrapped.has_stdin) as channels:
            running.connected.set_result(None)
            async with _Feeding(channels, running):
                await self._read(channels, running)
            if not running.ended.done():
                running.ended.set_result(None)
            with contextlib.suppress(ExecStreamLostError):
                while running.status is None:
                    message = await channels.receive()
                    running.status = message if isinstance(message, ExecStatus) else None

    def _open(
        self, words: tuple[str, ...], *, closes_stdin: bool = False
    ) -> "contextlib.AbstractAsyncContextManager[ExecChannels]":
        target = self.target
        return self.api.exec(
            target.pod,
            words,
            namespace=target.namespace,
            container=target.container,
            has_stdin=True,
            closes_stdin=closes_stdin,
        )

    async def _read(self, channels: ExecChannels, running: Running) -> None:
        sink = running.request.sink
        while running.exit_code is None:
            message = await channels.receive()
            if isinstance(message, ExecStatus):
                running.status = message
                break
            if message.channel is Channel.STDERR:
                running.kept_stderr.feed(running.stderr.feed(message.data))
                if running.stderr.marks:
                    running.begun.set()
                continue
            data = running.stdout.feed(message.data)
            if sink is None:
                running.kept_stdout.feed(data)
            elif data:
                await sink(data)
        running.begun.set()
        running.kept_stderr.feed(running.stderr.rest())
        rest = running.stdout.rest()
        if sink is None:
            running.kept_stdout.feed(rest)
        elif rest:
            await sink(rest)

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
        async with self._probing:
            code = await self._run_in_time(STILL_THERE, running.born)
        if code != 0:
            raise SandboxLostError(f"{self.target} is lost: its container ended with the command in it")
        return status.exit_code

    def _check_identity(self, running: Running) -> None:
        born, known = running.born, self._born
        self._born = known or born
        if born and known and born != known:
            raise SandboxLostError(f"{self.target} is lost: its container was restarted, and its files are gone")

    async def _kill(self, running: Running, seconds: float = KILL_SECONDS) -> None:
        """End what the command started. Raises one of GONE when that cannot be done."""
        arguments = (running.wrapped.word, running.session or "none")
        try:
            async with asyncio.timeout(seconds):
                await self._run_plain(KILL, *arguments)
        except TimeoutError:
            raise ExecStreamLostError(f"a command could not be killed within {seconds:.0f} s") from None

    async def _kill_quietly(self, running: Running) -> None:
        with contextlib.suppress(*GONE):
            await self._kill(running, QUIET_KILL_SECONDS)

    async def _run_plain(self, script: str, *arguments: str) -> int | None:
        """Without the wrapper; returns the exit code."""
        async with self._open(("/bin/sh", "-c", AWAITS_GO + script, "sh", *arguments)) as channels:
            await channels.send(GO)
            while True:
                message = await channels.receive()
                if isinstance(message, ExecStatus):
                    return message.exit_code

    async def end_commands(self) -> None:
        async with self._probing:
            code = await self._run_in_time(END_ALL)
        if code != 0:
            raise SandboxLostError(f"{self.target} is lost: its processes did not end")

    async def _run_in_time(self, script: str, *arguments: str) -> int | None:
        try:
            async with asyncio.timeout(KILL_SECONDS):
                return await self._run_plain(script, *arguments)
        except TimeoutError:
            raise SandboxLostError(f"{self.target} is lost: no answer within {KILL_SECONDS:.0f} s") from None
        except GONE as error:
            raise SandboxLostError(f"{self.target} is lost: {error}") from error

    def _keep(self, attending: "asyncio.Task[None]") -> None:
        self._attending = deque(task for task in self._attending if not task.done())
        if not attending.done():
            self._attending.append(attending)
        if len(self._attending) > MOST_LEFTOVERS:
            self._attending.popleft().cancel()

    async def close(self) -> None:
        attending, self._attending = self._attending, deque()
        for task in attending:
            task.cancel()
        await asyncio.gather(*attending, return_exceptions=True)


def make_running(request: ExecRequest) -> Running:
    wrapped, limit, loop = wrap(request), request.output_limit_bytes, asyncio.get_running_loop()
    return Running(
        request,
        wrapped,
        Marked(wrapped.mark),
        Marked(wrapped.mark),
        Capture(limit),
        Capture(limit),
        loop.create_future(),
        loop.create_future(),
    )


class _Feeding:
    """Begins the command and sends its input while the body reads; a source that fails fails the command."""

    def __init__(self, channels: ExecChannels, running: Running) -> None:
        self._channels, self._running = channels, running
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        wrapped, stdin, channels = self._running.wrapped, self._running.request.stdin, self._channels
        header = wrapped.header(not channels.can_close_stdin)
        is_short = channels.can_close_stdin and isinstance(stdin, bytes) and len(stdin) <= SHORT_BYTES
        await channels.send(header + stdin if is_short and isinstance(stdin, bytes) else header)
        if is_short and wrapped.has_stdin:
            await channels.close_stdin()
        elif wrapped.has_stdin:
            self._task = asyncio.create_task(feed(channels, self._running))
            self._task.add_done_callback(self._running.take_over_source)

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def feed(channels: ExecChannels, running: Running) -> None:
    """All of the command's own input."""
    stdin = running.request.stdin
    if channels.can_close_stdin:
        async for chunk in _chunks(stdin):
            await channels.send(chunk)
        await channels.close_stdin()
        return
    async for frame in _frames(_chunks(stdin)):
        await channels.send(b"%d\n" % len(frame))
        await channels.send(frame)
    await channels.send(b"0\n")


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
