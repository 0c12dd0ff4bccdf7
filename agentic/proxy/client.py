"""The control plane from another process: the calls of ProxyServer over HTTP."""

from types import TracebackType
from typing import Any, Self

import aiohttp
from pydantic import TypeAdapter

from .errors import ControlError
from .metrics import ProxyMetrics, from_text
from .models import Paused, Resume, SealedSession, SessionHandle, SessionInfo, SessionSpec

SESSIONS: TypeAdapter[list[SessionInfo]] = TypeAdapter(list[SessionInfo])


class ControlClient:
    """The control side's calls (ServerCalls). Use as an async context manager, or close it."""

    def __init__(self, control_url: str, control_key: str, timeout_seconds: float = 120.0) -> None:
        self._url = control_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {control_key}"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """Open a session; repeating it with an equal specification is harmless."""
        return SessionHandle.model_validate(await self._ask("POST", "/sessions", spec.model_dump()))

    async def seal(self, session_id: str) -> SealedSession:
        """End a session; the same result when repeated."""
        return SealedSession.model_validate(await self._ask("POST", f"/sessions/{session_id}/seal"))

    async def fetch(self, session_id: str) -> SealedSession | None:
        """A sealed session, None while it is open."""
        found = await self._ask("GET", f"/sessions/{session_id}")
        return None if found is None else SealedSession.model_validate(found)

    async def drop(self, session_id: str) -> None:
        """Forget a session; harmless if there is none."""
        await self._ask("DELETE", f"/sessions/{session_id}")

    async def heartbeat(self, session_id: str) -> SessionInfo:
        """Say that a session is still wanted."""
        return SessionInfo.model_validate(await self._ask("POST", f"/sessions/{session_id}/heartbeat"))

    async def list(self) -> "list[SessionInfo]":
        """The sessions that are held, and those that expired."""
        return SESSIONS.validate_python(await self._ask("GET", "/sessions"))

    async def describe(self, session_id: str) -> str:
        """The session's token graph for a human."""
        return str(await self._ask("GET", f"/sessions/{session_id}/graph"))

    async def pause(self) -> Paused:
        """Stop sampling until `resume`."""
        return Paused.model_validate(await self._ask("POST", "/pause"))

    async def resume(self, version: int | None = None) -> Paused:
        """Let sampling go on, with weights of this version."""
        return Paused.model_validate(await self._ask("POST", "/resume", Resume(version=version).model_dump()))

    async def metrics(self) -> ProxyMetrics:
        """What was counted since the start, by all processes."""
        return from_text(str(await self._ask("GET", "/metrics")))

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                is_json = response.content_type == "application/json"
                answer: Any = await response.json() if is_json else await response.text()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise ControlError(
                f"no answer from the control plane {self._url}: {reason}: is the proxy up?", 0
            ) from error
        if response.status >= 400:
            reason = answer["error"]["message"] if is_json else answer
            raise ControlError(f"{method} {path}: {reason}", response.status)
        return answer
