"""The event loop of a proxy process of its own; inside somebody else's process the loop is theirs.

So is the garbage collector. A full collection looks at every object of every open session, and all calls wait for it:
0.18 s with a thousand sessions of ten turns. What a call leaves is freed by counting references; the few cycles, which
are young when they die, are found by the collections of young objects.

And so is how long a thread that has encoded a long text waits for the interpreter, while the loop is busy.
"""

import asyncio
import gc
import sys
from collections.abc import Coroutine

COLLECT_AFTER = (20_000, 20, 50)
"""Thresholds of the collector: a full collection at the earliest after 20 million new objects, not 70 thousand."""

SWITCH_SECONDS = 0.001
"""After how long the loop gives way to a thread; Python's own 5 ms come on top of a call for each time it waits."""


def run(main: Coroutine[None, None, None]) -> None:
    """Run on uvloop, or on asyncio's own loop where uvloop is not installed."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
    else:
        uvloop.run(main)
