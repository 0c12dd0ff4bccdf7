"""The run's proxy as a named Ray actor, reached by every rollout worker.

The actor holds the sessions and talks to verl's engines; a worker only opens, seals and drops. It listens from its
first session on. It is restarted when its process is killed: the sessions that it held are then lost, which their
rollouts learn as infra, and the next session finds it listening again.
"""

import asyncio
import functools
from typing import Any, override

from agentic.proxy import SealedSession, SessionHandle, SessionSpec
from agentic.proxy.actor import ProxyServerActor
from agentic.proxy.engines.verl_client import LLMServerClient, VerlClientEngine
from agentic.rollout.agent_loop_config import RolloutJob
from agentic.rollout.errors import ProxyUnavailableError
from agentic.rollout.proxy_socket import prepare_folder
from agentic.rollout.runner_actor import ACTOR_CONCURRENCY


class RunProxyActor(ProxyServerActor):
    """Starts itself at its first session, once, however many come at the same moment."""

    _starting: asyncio.Task[dict[str, str]] | None = None

    @override
    async def open(self, spec: SessionSpec) -> SessionHandle:
        """See ProxyServer.open."""
        if self._starting is None:
            self._starting = asyncio.create_task(self.start())
        await asyncio.shield(self._starting)
        return await super().open(spec)

    @override
    async def start(self) -> dict[str, str]:
        """See ProxyServerActor.start."""
        prepare_folder(self._server.unix_socket)
        return await super().start()


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


@functools.cache
def proxy_of_run(job: RolloutJob, client: LLMServerClient) -> ActorProxy:
    """The run's proxy in front of verl's rollout servers, made by whoever comes first.

    Kept for the life of the process: Ray ends a named actor, sessions and all, once its maker holds no handle of it.
    """
    import ray

    name = f"proxy-{job.run_id}"
    try:
        return ActorProxy(ray.get_actor(name))
    except ValueError:
        actor = ray.remote(RunProxyActor).options(
            name=name, get_if_exists=True, num_cpus=0, max_concurrency=ACTOR_CONCURRENCY, max_restarts=-1
        )
        make_engine = functools.partial(VerlClientEngine, client)
        return ActorProxy(actor.remote(job.proxy, make_engine, job.model_dir))


async def _answer(call: Any) -> Any:
    from ray.exceptions import RayActorError

    try:
        return await call
    except RayActorError as error:
        raise ProxyUnavailableError(f"the proxy's process died: {type(error).__name__}") from error
