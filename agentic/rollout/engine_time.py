"""How long the engine worked for each session: an engine around an engine, with a clock.

What a session's generations took is added up, from the first token's request to the last token's arrival, also of those
that were given up. It is told once, with what the session holds; what nobody asks for is forgotten with the session.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from agentic.proxy import Engine, ProxyServer, SealedSession, SessionHandle, SessionSpec
from agentic.proxy.engines.base import Chunk, session_of
from agentic.proxy.models import CallSampling, SessionInfo


@runtime_checkable
class TimesEngine(Protocol):
    """A proxy's control side that knows the engine's time, and ends a session in one round trip."""

    async def finish(self, session_id: str) -> tuple[SealedSession, float]:
        """Seal a session and forget it: what it holds, and how many seconds the engine worked for it."""


class TimedEngine:
    """See `Engine`; all it does is the engine's that it is made around."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: CallSampling, request_id: str
    ) -> AsyncIterator[Chunk]:
        """See `Engine.generate`."""
        began = self._clock()
        chunks = self._engine.generate(prompt_ids, sampling, request_id)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(chunks, "aclose"):
                    stack.push_async_callback(chunks.aclose)
                async for chunk in chunks:
                    yield chunk
        finally:
            self._seconds[session_of(request_id)] += self._clock() - began

    async def abort(self, request_id: str) -> Chunk | None:
        """See `Engine.abort`."""
        return await self._engine.abort(request_id)

    def use_version(self, version: int) -> None:
        """See `Engine.use_version`."""
        self._engine.use_version(version)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()

    def take(self, session_id: str) -> float:
        """The session's seconds so far, which are forgotten here."""
        return self._seconds.pop(session_id, 0.0)


class TimedProxy:
    """`ProxyControl` of a proxy of this process, and `TimesEngine`."""

    def __init__(self, server: ProxyServer, engine: TimedEngine) -> None:
        self._server = server
        self._engine = engine

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See `ProxyControl.open`."""
        return await self._server.open(spec)

    async def seal(self, session_id: str) -> SealedSession:
        """See `ProxyControl.seal`."""
        return await self._server.seal(session_id)

    async def drop(self, session_id: str) -> None:
        """See `ProxyControl.drop`."""
        self._engine.take(session_id)
        await self._server.drop(session_id)

    async def sessions(self) -> list[SessionInfo]:
        """The sessions that are open."""
        return await self._server.list()

    async def finish(self, session_id: str) -> tuple[SealedSession, float]:
        """See `TimesEngine.finish`."""
        sealed, seconds = await self._server.seal(session_id), self._engine.take(session_id)
        await self._server.drop(session_id)
        return sealed, seconds
