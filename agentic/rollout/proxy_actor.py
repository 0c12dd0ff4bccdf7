"""The run's proxy as a named Ray actor, reached by every rollout worker.

The actor holds the sessions and talks to verl's engines; a worker only opens, seals and drops. It listens from its
first session on. It is restarted when its process is killed: the sessions that it held are then lost, which their
rollouts learn as infra, and the next session finds it listening again.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, override

from agentic.errors import PermanentError
from agentic.proxy import ProxyError, ProxySettings, SealedSession, SessionHandle, SessionSpec
from agentic.proxy.actor import ProxyServerActor
from agentic.proxy.engines.base import Engine
from agentic.proxy.engines.verl_client import LLMServerClient, VerlClientEngine
from agentic.rollout.actors import RETURN_SECONDS, Return, StartOnce, cause_of, named_actor
from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.engine_time import TimedEngine
from agentic.rollout.errors import ProxyUnavailableError
from agentic.rollout.proxy_socket import advertised, prepare_folder


class RunProxyActor(ProxyServerActor):
    """Starts itself at its first session."""

    def __init__(self, settings: ProxySettings, make_engine: Callable[[], Engine], tokenizer: str | Path) -> None:
        self._make_engine = make_engine
        super().__init__(advertised(settings), self._timed_engine, tokenizer)
        self._started = StartOnce(self.start)

    @override
    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See ProxyServer.open."""
        await self._started.get()
        return await super().open(spec)

    @override
    async def drop(self, session_id: str) -> None:
        """See ProxyServer.drop."""
        self._engine.take(session_id)
        await super().drop(session_id)

    async def finish(self, session_id: str) -> tuple[SealedSession, float]:
        """See `TimesEngine.finish`."""
        sealed, seconds = await self.seal(session_id), self._engine.take(session_id)
        await super().drop(session_id)
        return sealed, seconds

    def _timed_engine(self) -> Engine:
        self._engine = TimedEngine(self._make_engine())
        return self._engine

    @override
    async def start(self) -> dict[str, str]:
        """See ProxyServerActor.start."""
        prepare_folder(self._server.unix_socket)
        return await super().start()


class ActorProxy:
    """`ProxyControl` over the actor's handle."""

    def __init__(self, actor: Any, return_seconds: float = RETURN_SECONDS) -> None:
        self._actor = actor
        self._return = Return(actor, return_seconds)

    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See `ProxyControl.open`."""
        handle: SessionHandle = await self._answer(self._actor.open.remote(spec))
        return handle

    async def seal(self, session_id: str) -> SealedSession:
        """See `ProxyControl.seal`."""
        sealed: SealedSession = await self._answer(self._actor.seal.remote(session_id))
        return sealed

    async def drop(self, session_id: str) -> None:
        """See `ProxyControl.drop`. A proxy that has died has dropped everything: nobody waits for the next one here."""
        await self._answer(self._actor.drop.remote(session_id), waits=False)

    async def finish(self, session_id: str) -> tuple[SealedSession, float]:
        """See `TimesEngine.finish`. One call of the actor: what each costs counts with thousands of rollouts."""
        finished: tuple[SealedSession, float] = await self._answer(self._actor.finish.remote(session_id))
        return finished

    async def _answer(self, call: Any, *, waits: bool = True) -> Any:
        """What the actor answers. Raises what the proxy itself refused or what is permanent, as it was; and
        ProxyUnavailableError for all else that kept it from answering: after a death, once another one is there."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return await call
        except RayActorError as error:
            if waits:
                await self._return.wait()
            raise ProxyUnavailableError(f"the proxy's process died: {type(error).__name__}") from error
        except RayTaskError as error:
            cause = cause_of(error)
            if isinstance(cause, ProxyError | PermanentError):
                raise cause from error
            raise ProxyUnavailableError(f"the proxy failed: {type(cause).__name__}: {cause}") from error


@functools.cache
def proxy_of_run(job: RolloutJob, client: LLMServerClient) -> ActorProxy:
    """The run's proxy in front of verl's rollout servers, made by whoever comes first.

    Kept for the life of the process: Ray ends a named actor, sessions and all, once its maker holds no handle of it.
    """
    make_engine = functools.partial(VerlClientEngine, client)
    return ActorProxy(named_actor(f"proxy-{job.run_id}", RunProxyActor, job.proxy, make_engine, job.model_dir))
