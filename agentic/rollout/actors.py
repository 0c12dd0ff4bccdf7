"""What the run's two actors, proxy and trial runner, have in common: how they are found or made, how they start, and
what their failures are called, and how the return of one that died is waited for.

An actor starts at its first call, once, however many come at the same moment. A start that failed is told to those who
waited for it, and the next call tries again: what was in the way (a port that a dying predecessor holds, a sandbox that
cannot be swept away yet) goes away by itself.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

ACTOR_CONCURRENCY = 100_000
"""Calls that may wait in an actor at once. The runner's own limit is the one that counts: Ray's default of 1,000 would
also hold back `cancel`."""

ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""A share of what Ray's head alone has. Agents that run beside the trials reach the proxy on their own machine, so on
several nodes the two must not be told apart."""


RETURN_SECONDS = 120.0
"""For an actor's process to start again on a busy machine, imports and tokenizer included."""
LOOK_SECONDS = 0.5


class StartOnce[T]:
    """The result of `start`, made at the first call of `get`, and again after a failure."""

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._starting: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """What `start` returned. Raises what it raised, to all who waited for that try. A caller that is cancelled
        leaves the start to the others."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._run())
        return await asyncio.shield(self._starting)

    async def _run(self) -> T:
        try:
            return await self._start()
        except BaseException:
            self._starting = None
            raise


class Return:
    """Waiting for an actor whose process died until it answers again, once for all who wait.

    Ray refuses at once what is asked of an actor that is being restarted, so that all tries that a rollout has left
    would be over before that is done."""

    def __init__(self, actor: Any, seconds: float = RETURN_SECONDS) -> None:
        self._actor, self._seconds = actor, seconds
        self._waiting: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Returns when it answers, or after the time that it is given."""
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.create_task(self._wait())
        await asyncio.shield(self._waiting)

    async def _wait(self) -> None:
        from ray.exceptions import RayError

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while True:
                    try:
                        await self._actor.__ray_ready__.remote()
                        return
                    except RayError:
                        await asyncio.sleep(LOOK_SECONDS)


def named_actor(name: str, actor_class: type, *arguments: Any) -> Any:
    """The handle of the run's actor of this name, made by whoever comes first."""
    import ray

    try:
        return ray.get_actor(name)
    except ValueError:
        actor = ray.remote(actor_class).options(
            name=name,
            get_if_exists=True,
            num_cpus=0,
            resources=ON_THE_HEAD,
            max_concurrency=ACTOR_CONCURRENCY,
            max_restarts=-1,
        )
        return actor.remote(*arguments)


def cause_of(error: Exception) -> Exception:
    """What was raised inside an actor, out of Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error
