"""ProxyServer: one engine, one renderer, one journal and two listening planes, as one object with a life.

The control side's calls (ServerCalls) exist here for code in the process and on the control plane for code elsewhere.
"""

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from .control import ControlPlane
from .engines.base import Engine
from .errors import ProxyError
from .fleet.ownership import redistribute
from .folder_lock import FolderLock
from .gateway import Gateway
from .journal import FileJournal, Journal, NoJournal
from .keys import SessionKeys, kept_secret
from .listening import listen_tcp, listen_unix, url_of
from .metrics import ProxyMetrics
from .models import Paused, SealedSession, SessionHandle, SessionInfo, SessionSpec
from .renderers.base import Renderer
from .sampling_state import StateFile
from .sessions import Sessions
from .settings import ProxySettings
from .tracing import Tracing
from .web import AgentPlane, claims_of

GRACE_SECONDS = 1.0
"""How long open connections may take to end when the server stops; generations are aborted before."""


@dataclass(frozen=True, slots=True)
class Share:
    """What makes a server one worker of a fleet: sockets that are bound already, and what comes before its handlers."""

    agent_url: str
    control_url: str
    secret: bytes
    """Of the sessions' keys."""
    agent_sockets: Sequence[socket.socket]
    control_sockets: Sequence[socket.socket]
    agent_middleware: Middleware
    control_middleware: Middleware
    private_agent_socket: Path
    """Where other workers send what is this one's; nothing comes before the handlers there."""
    private_control_socket: Path
    sampling_state: Path
    """What the workers know together of pauses and versions."""


class ProxyServer:
    """Serves agents and the control side; see `agentic.proxy` for what a session is."""

    def __init__(
        self,
        settings: ProxySettings,
        engine: Engine,
        renderer: Renderer,
        journal: Journal | None = None,
        control_key: str | None = None,
        share: Share | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._renderer = renderer
        self._metrics = ProxyMetrics()
        kept = None if share is None else StateFile(share.sampling_state)
        self._sessions = Sessions(engine, journal or _make_journal(settings), settings, self._metrics, kept)
        self._gateway = Gateway(engine, renderer, self._sessions, settings, self._metrics)
        self._keys = SessionKeys(_secret(settings, share))
        self._share = share
        self._lock = _make_lock(settings, share)
        self._runners: list[web.AppRunner] = []
        self._socket_files: list[Path] = []
        self._agent_port: int | None = None
        self._control_port: int | None = None
        self.control_key = control_key or secrets.token_urlsafe(32)
        """Bearer token of the control plane."""

    @property
    def agent_url(self) -> str:
        """Where agents reach the proxy."""
        if self._share is not None:
            return self._share.agent_url
        host = self._settings.advertised_host or self._settings.host
        return url_of(host, _started(self._agent_port))

    @property
    def control_url(self) -> str:
        """Where the control side reaches the proxy."""
        if self._share is not None:
            return self._share.control_url
        return url_of(self._settings.control_host, _started(self._control_port))

    @property
    def unix_socket(self) -> Path | None:
        """Socket file of the agent plane, if there is one."""
        return self._settings.unix_socket

    async def start(self) -> None:
        """Recover journalled sessions and listen; nothing if started already."""
        if self._runners:
            return
        await self._recover()
        tracing = Tracing(self._settings.tracing)
        agent = AgentPlane(self._gateway, self._keys, self._renderer, self._settings, self._metrics, tracing)
        control = ControlPlane(self, self.control_key)
        try:
            if self._share is None:
                await self._listen_alone(agent, control)
            else:
                await self._listen_in_fleet(agent, control, self._share)
        except OSError as error:
            await self.stop()
            raise ProxyError(f"cannot listen: {error.strerror or error}: choose another port or socket path") from error

    async def stop(self) -> None:
        """Abort generations, close connections, sockets and the engine; nothing if stopped already."""
        if not self._runners:
            return
        runners, self._runners = self._runners, []
        await self._sessions.stop()
        for runner in runners:
            await runner.cleanup()
        self._agent_port = self._control_port = None
        while self._socket_files:
            self._socket_files.pop().unlink(missing_ok=True)
        await self._engine.close()
        if self._lock is not None:
            self._lock.release()

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """Open a session; an equal specification again gives the same handle, a different one SessionConflict."""
        opened = await self._sessions.open(spec)
        return SessionHandle(
            session_id=spec.session_id,
            base_url=f"{self.agent_url}/s/{spec.session_id}/v1",
            api_key=self._keys.key(claims_of(opened)),
        )

    async def seal(self, session_id: str) -> SealedSession:
        """End a session and give what it captured; the same when repeated. Raises UnknownSession."""
        return await self._sessions.seal(session_id)

    async def fetch(self, session_id: str) -> SealedSession | None:
        """A sealed session, None while it is open. Raises UnknownSession."""
        return await self._sessions.fetch(session_id)

    async def drop(self, session_id: str) -> None:
        """Forget a session; harmless if there is none."""
        await self._sessions.drop(session_id)

    async def heartbeat(self, session_id: str) -> SessionInfo:
        """Say that a session is still wanted. Raises UnknownSession, SessionSealed."""
        return await self._sessions.heartbeat(session_id)

    async def list(self) -> "list[SessionInfo]":
        """The sessions in memory, and those that expired."""
        return self._sessions.list()

    async def describe(self, session_id: str) -> str:
        """The session's token graph for a human. Raises UnknownSession."""
        return await self._sessions.describe(session_id)

    async def pause(self) -> Paused:
        """Stop sampling: what runs goes on after `resume` with the tokens so far; calls wait."""
        return await self._sessions.pause()

    async def resume(self, version: int | None = None) -> Paused:
        """Let sampling go on, with weights of this version."""
        return await self._sessions.resume(version)

    async def metrics(self) -> ProxyMetrics:
        """What was counted since the start."""
        return self._metrics.model_copy()

    async def _recover(self) -> None:
        if self._lock is None or self._settings.journal_directory is None:
            return await self._sessions.start()
        await self._lock.acquire()
        try:
            redistribute(self._settings.journal_directory, slots=0)
            await self._sessions.start()
        except BaseException:
            self._lock.release()
            raise

    async def _listen_alone(self, agent: AgentPlane, control: ControlPlane) -> None:
        settings, limit = self._settings, self._settings.max_body_bytes
        agents, controls = await self._runner(agent.app()), await self._runner(control.app(limit))
        self._agent_port = await _listen(agents, settings.host, settings.port)
        self._control_port = await _listen(controls, settings.control_host, settings.control_port)
        if settings.unix_socket is not None:
            await self._listen_unix(agents, settings.unix_socket)

    async def _listen_in_fleet(self, agent: AgentPlane, control: ControlPlane, share: Share) -> None:
        limit = self._settings.max_body_bytes
        await self._listen_unix(await self._runner(agent.app()), share.private_agent_socket)
        await self._listen_unix(await self._runner(control.app(limit)), share.private_control_socket)
        self._sessions.adopt_state()  # A pause that gave up waiting for this worker is known to the others.
        agents = await self._runner(agent.app([share.agent_middleware]))
        controls = await self._runner(control.app(limit, [share.control_middleware]))
        for bound in share.agent_sockets:
            await web.SockSite(agents, bound).start()
        for bound in share.control_sockets:
            await web.SockSite(controls, bound).start()

    async def _listen_unix(self, runner: web.AppRunner, path: Path) -> None:
        bound = listen_unix(path)
        self._socket_files.append(path)
        await web.SockSite(runner, bound).start()

    async def _runner(self, app: web.Application) -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=GRACE_SECONDS)
        self._runners.append(runner)
        await runner.setup()
        return runner


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    bound = listen_tcp(host, port)
    await web.SockSite(runner, bound).start()
    return int(bound.getsockname()[1])


def _secret(settings: ProxySettings, share: Share | None) -> bytes | None:
    if share is not None:
        return share.secret
    return None if settings.journal_directory is None else kept_secret(settings.journal_directory)


def _make_lock(settings: ProxySettings, share: Share | None) -> FolderLock | None:
    # A fleet's supervisor holds the lock for its workers.
    return FolderLock(settings.journal_directory) if share is None and settings.journal_directory is not None else None


def _make_journal(settings: ProxySettings) -> Journal:
    if settings.journal_directory is None:
        return NoJournal()
    return FileJournal(settings.journal_directory, settings.journal_fsync)


def _started(port: int | None) -> int:
    if port is None:
        raise ProxyError("the proxy is not listening: start it first")
    return port
