"""The event loop of a proxy process of its own; inside somebody else's process the loop is theirs.

So is the garbage collector. It looks at every young object, and at all that these refer to, while all calls wait: 30 ms
for 20 thousand objects, 0.18 s for a thousand sessions of ten turns. What a call leaves is freed by counting
references, so the old are hardly ever looked at, and the young often, a few at a time.

And so is how long a thread that has encoded a long text waits for the interpreter, while the loop is busy.
"""

import asyncio
import gc
import sys
from collections.abc import Coroutine

COLLECT_AFTER = (2_000, 200, 50)
"""Thresholds of the collector: after 2 thousand new objects these, after 400 thousand those that are not so new, and
after 20 million all of them."""

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
