"""The control side's calls: the same on the server, on its Ray actor and on the client of the control plane."""

from typing import Protocol

from .metrics import ProxyMetrics
from .models import Paused, SealedSession, SessionHandle, SessionInfo, SessionSpec


class ServerCalls(Protocol):
    """What whoever trains asks of a proxy, wherever it runs. All of them may be repeated."""

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """Open a session; an equal specification again gives the same handle, a different one is a conflict."""
        ...

    async def seal(self, session_id: str) -> SealedSession:
        """End a session and give what it captured; the same when repeated."""
        ...

    async def fetch(self, session_id: str) -> SealedSession | None:
        """A sealed session, None while it is open."""
        ...

    async def drop(self, session_id: str) -> None:
        """Forget a session and its journal; harmless if there is none."""
        ...

    async def heartbeat(self, session_id: str) -> SessionInfo:
        """Say that a session is still wanted."""
        ...

    async def list(self) -> "list[SessionInfo]":
        """The sessions that are held, and those that expired."""
        ...

    async def describe(self, session_id: str) -> str:
        """The session's token graph for a human."""
        ...

    async def pause(self) -> Paused:
        """Stop sampling: what runs is interrupted and goes on after `resume` with the tokens so far; calls wait."""
        ...

    async def resume(self, version: int | None = None) -> Paused:
        """Let sampling go on, with weights of this version; None: as before, or as the engine says."""
        ...

    async def metrics(self) -> ProxyMetrics:
        """What was counted since the start."""
        ...
