"""The event loop of a proxy process of its own; inside somebody else's process the loop is theirs.

So is the garbage collector, which stops all calls while it looks. What a call leaves is freed by counting references,
so it finds next to nothing, and a look at all objects of a thousand long sessions takes 0.1 to 0.2 s. So it looks at
the young only, often and a few at a time; what has lived for a second is set aside; and at all there is, once in ten
minutes, in case something did leave a cycle after all.

And so is how long a thread that has encoded a long text waits for the interpreter, while the loop is busy.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Coroutine

COLLECT_AFTER = (2_000, 1_000_000, 1_000_000)
"""Thresholds of the collector: after 2 thousand new objects these, and by itself never those that are not so new."""

SET_ASIDE_SECONDS = 1.0
"""How often what there is is set aside."""

LOOK_AT_ALL_SECONDS = 600.0
"""How often all that was set aside is looked at."""

SWITCH_SECONDS = 0.001
"""After how long the loop gives way to a thread; Python's own 5 ms come on top of a call for each time it waits."""


def run(main: Coroutine[None, None, None], look_at_all_seconds: float = LOOK_AT_ALL_SECONDS) -> None:
    """Run on uvloop, or on asyncio's own loop where uvloop is not installed."""
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(_beside_collecting(main, look_at_all_seconds))
    else:
        uvloop.run(_beside_collecting(main, look_at_all_seconds))


async def _beside_collecting(main: Coroutine[None, None, None], look_at_all_seconds: float) -> None:
    collecting = asyncio.create_task(_collect(look_at_all_seconds))
    try:
        await main
    finally:
        collecting.cancel()


async def _collect(look_at_all_seconds: float) -> None:
    looked_at = time.monotonic()
    while True:
        gc.freeze()
        await asyncio.sleep(SET_ASIDE_SECONDS)
        if time.monotonic() - looked_at > look_at_all_seconds:
            gc.unfreeze()
            gc.collect()
            looked_at = time.monotonic()
