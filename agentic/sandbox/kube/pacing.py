"""How many sandboxes may start at once, and where not. Pure counting; the gate that waits is `Gate`.

Nodes are not listed, which would need a right beyond our namespace; they are learnt from where our own pods land, and
forgotten when none has landed there for long. Until some have landed one node is assumed, so a burst starts slowly and
widens by itself as pods spread. A node on which as many start as may is one to avoid, for as long as there is another:
the scheduler is asked to, and not forced, since what has room is its to know.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentic.sandbox.settings import KubeSandbox

FORGOTTEN_SECONDS = 900.0
"""After which a node that takes no pod of ours no longer counts: it may have been removed."""


def starts_allowed(settings: KubeSandbox, nodes_seen: int) -> int:
    """Sandboxes that may be between asked for and running."""
    return max(1, min(settings.start_concurrency, settings.starts_per_node * max(nodes_seen, 1)))


class Start:
    """One sandbox between asked for and running."""

    def __init__(self, gate: "Gate") -> None:
        self._gate = gate
        self.node = ""

    def land(self, node: str) -> None:
        """It is on this node. May be repeated."""
        self.node = node
        self._gate.see(node)

    def leave(self) -> None:
        """Let the next one in: it runs, has failed, or is stuck. May be repeated."""
        self._gate.end(self)


class Gate:
    """Lets so many in at once; the bound may change while others wait."""

    def __init__(self, settings: KubeSandbox, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._under_way: set[Start] = set()
        self._seen: dict[str, float] = {}
        self._changed = asyncio.Event()

    @property
    def allowed(self) -> int:
        long_ago = self._clock() - FORGOTTEN_SECONDS
        return starts_allowed(self._settings, sum(seen > long_ago for seen in self._seen.values()))

    @property
    def full(self) -> tuple[str, ...]:
        """Nodes on which as many start as may."""
        on_node = Counter(start.node for start in self._under_way if start.node)
        return tuple(sorted(node for node, count in on_node.items() if count >= self._settings.starts_per_node))

    def see(self, node: str) -> None:
        """A pod of ours landed there."""
        self._seen[node] = self._clock()
        self._changed.set()

    def end(self, start: Start) -> None:
        self._under_way.discard(start)
        self._changed.set()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[Start]:
        """Held from asking for a sandbox until it runs or has failed, unless it leaves before."""
        while len(self._under_way) >= self.allowed:
            self._changed.clear()
            await self._changed.wait()
        start = Start(self)
        self._under_way.add(start)
        try:
            yield start
        finally:
            start.leave()
