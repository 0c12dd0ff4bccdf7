"""The proxy as a Ray actor: the same calls as ProxyServer, with engine and renderer built inside the actor's
process."""

from collections.abc import Callable
from pathlib import Path

from .engines.base import Engine
from .errors import ProxyError
from .metrics import ProxyMetrics
from .models import Paused, SealedSession, SessionHandle, SessionInfo, SessionSpec
from .renderers import make_renderer
from .server import ProxyServer
from .settings import ProxySettings


class ProxyServerActor:
    """What runs in the actor; Ray makes one event loop for its coroutines.

    `make_engine` is called in the actor's process: it may close over handles of verl's servers, not over connections.
    """

    def __init__(self, settings: ProxySettings, make_engine: Callable[[], Engine], tokenizer: str | Path) -> None:
        renderer = make_renderer(tokenizer)
        self._make_server: Callable[[], ProxyServer] = lambda: ProxyServer(settings, make_engine(), renderer)
        self._server = self._make_server()

    async def start(self) -> dict[str, str]:
        """Listen, and say where: `agent_url`, `control_url` and `control_key`. May be repeated after a ProxyError."""
        try:
            await self._server.start()
        except ProxyError:
            self._server = self._make_server()  # One that could not listen has stopped, and closed its engine.
            raise
        server = self._server
        return {"agent_url": server.agent_url, "control_url": server.control_url, "control_key": server.control_key}

    async def stop(self) -> None:
        """Stop listening and close the engine."""
        await self._server.stop()

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See ProxyServer.open."""
        return await self._server.open(spec)

    async def seal(self, session_id: str) -> SealedSession:
        """See ProxyServer.seal."""
        return await self._server.seal(session_id)

    async def drop(self, session_id: str) -> None:
        """See ProxyServer.drop."""
        await self._server.drop(session_id)

    async def fetch(self, session_id: str) -> SealedSession | None:
        """See ProxyServer.fetch."""
        return await self._server.fetch(session_id)

    async def heartbeat(self, session_id: str) -> SessionInfo:
        """See ProxyServer.heartbeat."""
        return await self._server.heartbeat(session_id)

    async def list(self) -> "list[SessionInfo]":
        """See ProxyServer.list."""
        return await self._server.list()

    async def describe(self, session_id: str) -> str:
        """See ProxyServer.describe."""
        return await self._server.describe(session_id)

    async def pause(self) -> Paused:
        """See ProxyServer.pause."""
        return await self._server.pause()

    async def resume(self, version: int | None = None) -> Paused:
        """See ProxyServer.resume."""
        return await self._server.resume(version)

    async def metrics(self) -> ProxyMetrics:
        """See ProxyServer.metrics."""
        return await self._server.metrics()
