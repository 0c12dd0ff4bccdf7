"""How many sandboxes may start at once. Pure counting; the gate that waits is `Gate`.

Nodes are not listed, which would need a right beyond our namespace; their number is learnt from where our own pods
land. Until some have landed one node is assumed, so a burst starts slowly and widens by itself as pods spread.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from agentic.sandbox.settings import KubeSandbox


def starts_allowed(settings: KubeSandbox, nodes_seen: int) -> int:
    """Sandboxes that may be between asked for and running."""
    return max(1, min(settings.start_concurrency, settings.starts_per_node * max(nodes_seen, 1)))


class Gate:
    """Lets so many in at once; the bound may change while others wait."""

    def __init__(self, settings: KubeSandbox) -> None:
        self._settings = settings
        self._inside = 0
        self._nodes: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def allowed(self) -> int:
        return starts_allowed(self._settings, len(self._nodes))

    def see_nodes(self, nodes: Iterable[str]) -> None:
        """Where pods of ours landed."""
        self._nodes.update(node for node in nodes if node)
        self._changed.set()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[Callable[[], None]]:
        """Held from asking for a sandbox until it runs or has failed. What it yields lets the next one in before, for
        one that is stuck; it may be called again."""
        while self._inside >= self.allowed:
            self._changed.clear()
            await self._changed.wait()
        self._inside += 1
        with contextlib.ExitStack() as once:
            once.callback(self._leave)
            yield once.close

    def _leave(self) -> None:
        self._inside -= 1
        self._changed.set()
