"""The process that holds a fleet together: binds the ports, starts the workers, and starts a dead one again.

It keeps every listening socket open itself, so the connections that wait at one whose worker died are not reset. Each
of the agent plane's sockets is accepted from by two workers: the kernel spreads connections over the sockets, and none
of them waits for a restart. A worker's own port, if it has one, is its alone: what connects there waits for the worker.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ..engines.base import Engine
from ..errors import ProxyError
from ..folder_lock import FolderLock
from ..keys import SECRET_BYTES, kept_secret
from ..listening import listen_tcp, listen_unix, url_of
from ..options import log_level
from ..renderers.base import Renderer
from ..settings import ProxySettings
from .boot import Boot, encode_boot
from .ownership import redistribute

logger = logging.getLogger(__name__)

LAST_PORT = 65535
START_SECONDS = 60.0
"""How long a worker may take to recover its sessions and listen."""
STOP_SECONDS = 8.0
"""How long a worker may take to end when asked; it ends itself hard before that."""
PAUSES_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Before the first, second, ... restart in a row of a worker that ends soon after its start."""
STABLE_SECONDS = 10.0
"""A worker that lived so long starts counting anew."""


class ProxyFleet:
    """A ProxyServer of several processes: the same ports, urls and key, with `start` and `stop` like it."""

    def __init__(
        self,
        settings: ProxySettings,
        make_engine: Callable[[], Engine],
        make_renderer: Callable[[], Renderer],
        processes: int,
        control_key: str | None = None,
    ) -> None:
        if processes < 1:
            raise ProxyError(f"processes is {processes}: use at least 1")
        if (settings.own_port or 0) + processes - 1 > LAST_PORT:
            first = LAST_PORT - processes + 1
            raise ProxyError(
                f"own_port is {settings.own_port}, too high for {processes} processes: use {first} at most"
            )
        self._settings = settings
        self._make_engine = make_engine
        self._make_renderer = make_renderer
        self._processes = processes
        self._secret: bytes | None = None
        self._folder = Path()
        self._agents: list[socket.socket] = []
        self._own: list[socket.socket] = []
        self._inside: list[socket.socket] = []
        self._control: list[socket.socket] = []
        self._workers: list[_Worker] = []
        self._lock = None if settings.journal_directory is None else FolderLock(settings.journal_directory)
        self.control_key = control_key or secrets.token_urlsafe(32)
        """Bearer token of the control plane."""

    @property
    def agent_url(self) -> str:
        """Where agents reach the fleet."""
        return _url(self._settings.advertised_host or self._settings.host, self._agents)

    @property
    def control_url(self) -> str:
        """Where the control side reaches the fleet."""
        return _url(self._settings.control_host, self._control)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids, by slot."""
        return [worker.pid for worker in self._workers]

    async def start(self) -> None:
        """Bind, start the workers and wait until each listens; nothing if started already."""
        if self._workers:
            return
        self._folder = Path(tempfile.mkdtemp(prefix="agentic-proxy-"))
        try:
            self._bind()
            held = await self._take_folder()
            self._workers = [_Worker(self._boot(slot, held)) for slot in range(self._processes)]
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except OSError as error:
            await self.stop()
            raise ProxyError(f"cannot listen: {error.strerror or error}: choose another port or socket path") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the workers, their generations aborted, and close the ports; nothing if stopped already."""
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.stop() for worker in workers))
        for bound in self._inside:
            Path(bound.getsockname()).unlink(missing_ok=True)
        for bound in (*self._agents, *self._own, *self._inside, *self._control):
            bound.close()
        self._agents, self._own, self._inside, self._control = [], [], [], []
        if self._lock is not None:
            self._lock.release()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _take_folder(self) -> tuple[int, ...]:
        journal = self._settings.journal_directory
        if self._lock is None or journal is None:
            return ()
        held = await self._lock.acquire()
        redistribute(journal, self._processes)
        return (held,)

    def _bind(self) -> None:
        settings, port = self._settings, self._settings.port
        for _ in range(self._processes):
            self._agents.append(listen_tcp(settings.host, port, shared=self._processes > 1))
            port = self._agents[0].getsockname()[1]
        if settings.own_port is not None and self._processes > 1:
            for slot in range(self._processes):
                self._own.append(listen_tcp(settings.host, settings.own_port + slot * bool(settings.own_port)))
        self._control.append(listen_tcp(settings.control_host, settings.control_port))
        if settings.unix_socket is not None:
            self._inside.append(listen_unix(settings.unix_socket))

    def _find_secret(self) -> bytes:
        """Of the sessions' keys: beside the journal if there is one, so that keys outlive the fleet as sessions do."""
        journal = self._settings.journal_directory
        self._secret = secrets.token_bytes(SECRET_BYTES) if journal is None else kept_secret(journal)
        return self._secret

    def _boot(self, slot: int, held: tuple[int, ...]) -> Boot:
        following = (slot + 1) % self._processes
        agents = [self._agents[number] for number in sorted({slot, following})]
        own = self._own[slot : slot + 1]
        return Boot(
            slot=slot,
            slots=self._processes,
            folder=self._folder,
            settings=self._settings,
            make_engine=self._make_engine,
            make_renderer=self._make_renderer,
            secret=self._secret or self._find_secret(),
            control_key=self.control_key,
            agent_url=_url(self._settings.advertised_host or self._settings.host, own or self._agents),
            control_url=self.control_url,
            agent_sockets=tuple(bound.fileno() for bound in (*agents, *own, *self._inside)),
            control_sockets=tuple(bound.fileno() for bound in self._control),
            held=held,
            log_level=log_level(),
        )


class _Worker:
    """One slot's process, again and again."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._bytes = encode_boot(boot)
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the process, wait until it listens, and keep it alive from then on."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End the process."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._process is not None:
            await _end(self._process)

    async def _keep(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            since = loop.time()
            status = await self._ended()
            failures = 0 if loop.time() - since > STABLE_SECONDS else failures + 1
            logger.error("worker %d (pid %d) ended with %s: starting it again", self._boot.slot, self.pid, status)
            await asyncio.sleep(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)] if failures > 1 else 0.0)
            try:
                await self._launch()
            except ProxyError as error:
                logger.error("%s", error)

    async def _ended(self) -> int | None:
        return await self._process.wait() if self._process is not None else None

    async def _launch(self) -> None:
        process = self._process = await self._spawn()
        if process.stdin is None or process.stdout is None:
            raise ProxyError("a worker was started without pipes")
        try:
            process.stdin.write(self._bytes)
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
            message = json.loads(line or b'{"error": "ended at its start: see its log"}')
        except (TimeoutError, OSError, ValueError) as error:
            await _end(process)
            raise ProxyError(f"worker {self._boot.slot} did not start: see its log") from error
        if "error" in message:
            await _end(process)
            raise ProxyError(f"worker {self._boot.slot}: {message['error']}")

    async def _spawn(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "agentic.proxy.fleet.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(*self._boot.agent_sockets, *self._boot.control_sockets, *self._boot.held),
            )
        except OSError as error:
            raise ProxyError(f"worker {self._boot.slot} cannot be started: {error.strerror or error}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _url(host: str, bound: list[socket.socket]) -> str:
    if not bound:
        raise ProxyError("the proxy is not listening: start it first")
    return url_of(host, bound[0].getsockname()[1])
