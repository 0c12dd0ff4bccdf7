"""The code sandbox as a Ray actor: one named actor, reached by URL from every process of the cluster."""

import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from agentic.rollout.actors import StartOnce
from agentic.sandbox.settings import SandboxSettings
from agentic.training.tools.code_service import serve
from agentic.training.tools.settings import CodeSandboxSettings


class Reached(NamedTuple):
    """How a tool reaches the service."""

    url: str
    key: str


class CodeSandboxActor:
    """The service in an actor's process; its address is the node's, so it always has a key."""

    def __init__(self, settings: CodeSandboxSettings, sandbox: SandboxSettings, store_dir: Path) -> None:
        self._parts = (settings, sandbox, store_dir)
        self._stack = AsyncExitStack()
        self._started = StartOnce(self._start)

    async def start(self) -> Reached:
        """Listen, at the first call; the address and the key."""
        return await self._started.get()

    async def _start(self) -> Reached:
        import ray

        key = secrets.token_hex(16)
        service = serve(*self._parts, host=ray.util.get_node_ip_address(), key=key)
        return Reached(await self._stack.enter_async_context(service), key)

    async def stop(self) -> None:
        """End it with all that it runs, for good."""
        await self._stack.aclose()


def start_code_sandbox(
    settings: CodeSandboxSettings, sandbox: SandboxSettings, store_dir: Path, name: str = "code-sandbox"
) -> tuple[Any, Reached]:
    """The actor, made by whoever comes first, and how to reach it. The actor ends with its last handle."""
    import ray

    options = {"name": name, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 8}
    actor = ray.remote(CodeSandboxActor).options(**options).remote(settings, sandbox, store_dir)
    return actor, ray.get(actor.start.remote())
