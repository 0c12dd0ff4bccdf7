"""The run's proxy as a named Ray actor, reached by every rollout worker.

The actor holds the sessions and talks to verl's engines; a worker only opens, seals and drops. It is restarted when its
process is killed: the sessions that it held are then lost, which their rollouts learn as infra.
"""

from typing import Any

from agentic.proxy import SealedSession, SessionHandle, SessionSpec
from agentic.rollout.errors import ProxyUnavailableError


class ActorProxy:
    """`ProxyControl` over the actor's handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See `ProxyControl.open`."""
        handle: SessionHandle = await _answer(self._actor.open.remote(spec))
        return handle

    async def seal(self, session_id: str) -> SealedSession:
        """See `ProxyControl.seal`."""
        sealed: SealedSession = await _answer(self._actor.seal.remote(session_id))
        return sealed

    async def drop(self, session_id: str) -> None:
        """See `ProxyControl.drop`."""
        await _answer(self._actor.drop.remote(session_id))


async def _answer(call: Any) -> Any:
    from ray.exceptions import RayActorError

    try:
        return await call
    except RayActorError as error:
        raise ProxyUnavailableError(f"the proxy's process died: {type(error).__name__}") from error
