"""The proxy as a Ray actor: the same calls as ProxyServer, with engine and renderer built inside the actor's
process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .engines.base import Engine
from .models import SealedSession, SessionHandle, SessionSpec
from .renderers import make_renderer
from .server import ProxyServer
from .settings import ProxySettings


class ProxyServerActor:
    """What runs in the actor; Ray makes one event loop for its coroutines."""

    def __init__(self, settings: ProxySettings, make_engine: Callable[[], Engine], tokenizer: str | Path) -> None:
        self._server = ProxyServer(settings, make_engine(), make_renderer(tokenizer))

    async def start(self) -> dict[str, str]:
        """Listen, and say where: `agent_url`, `control_url` and `control_key`."""
        await self._server.start()
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


def start_actor(
    settings: ProxySettings, make_engine: Callable[[], Engine], tokenizer: str | Path, **options: Any
) -> Any:
    """A handle of a new actor; `options` are Ray's (name, num_cpus, max_restarts and so on). Ray has to be
    initialised.

    `make_engine` is called in the actor's process, so it may close over handles of verl's servers, not over
    connections.
    """
    import ray

    # Every rollout may have a call waiting here, so rollouts bound the concurrency, not Ray's default of 1,000.
    return (
        ray.remote(ProxyServerActor)
        .options(**({"max_concurrency": 10_000} | options))
        .remote(settings, make_engine, tokenizer)
    )
