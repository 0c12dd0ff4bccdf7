"""How many sandboxes may start at once. Pure counting; the gate that waits is `Gate`.

Nodes are not listed, which would need a right beyond our namespace; their number is learnt from where our own pods
land. Until some have landed one node is assumed, so a burst starts slowly and widens by itself as pods spread.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
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
        self._nodes: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @property
    def allowed(self) -> int:
        return starts_allowed(self._settings, len(self._nodes))

    def see_nodes(self, nodes: Iterable[str]) -> None:
        """Where pods of ours landed."""
        self._nodes.update(node for node in nodes if node)

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Held from asking for a sandbox until it runs or has failed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._inside < self.allowed)
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            async with self._changed:
                self._changed.notify_all()
