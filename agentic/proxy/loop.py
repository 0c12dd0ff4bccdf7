"""The event loop of a proxy process of its own; inside somebody else's process the loop is theirs.

So is the garbage collector, which stops all calls while it looks. What a call leaves, answered or not, is freed by
counting references, so it finds next to nothing, and a look at all objects of a thousand long sessions takes 0.1 to
0.2 s. So it looks at the young only, often and a few at a time; what has lived for a second is set aside; and at all
there is, once in ten minutes, or when the process holds twice of what it did at the last look, in case something did
leave a cycle after all: growing to a GiB as it should costs two looks, not many.

And so is how long a thread that has encoded a long text waits for the interpreter, while the loop is busy.
"""

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

COLLECT_AFTER = (2_000, 1_000_000, 1_000_000)
"""Thresholds of the collector: after 2 thousand new objects these, and by itself never those that are not so new."""

SET_ASIDE_SECONDS = 1.0
"""How often what there is is set aside."""

LOOK_AT_ALL_SECONDS = 600.0
"""How often all that was set aside is looked at."""

LOOK_AT_ALL_BYTES = 256 << 20
"""How much the process may grow at least before all is looked at sooner; when it holds more, by as much as it holds. No
more can lie in cycles."""

MEMORY_FILE = Path("/proc/self/statm")
"""Where Linux says how much memory the process holds; elsewhere only time counts."""

SWITCH_SECONDS = 0.001
"""After how long the loop gives way to a thread; Python's own 5 ms come on top of a call for each time it waits."""


def run(
    main: Coroutine[None, None, None],
    look_at_all_seconds: float = LOOK_AT_ALL_SECONDS,
    look_at_all_bytes: int = LOOK_AT_ALL_BYTES,
) -> None:
    """Run on uvloop, or on asyncio's own loop where uvloop is not installed."""
    beside = _beside_collecting(main, look_at_all_seconds, look_at_all_bytes)
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(beside)
    else:
        uvloop.run(beside)


async def _beside_collecting(main: Coroutine[None, None, None], seconds: float, grown_bytes: int) -> None:
    collecting = asyncio.create_task(_collect(seconds, grown_bytes))
    try:
        await main
    finally:
        collecting.cancel()


async def _collect(seconds: float, grown_bytes: int) -> None:
    looked_at, held = time.monotonic(), _held_bytes()
    while True:
        gc.collect(0)  # or what has just become garbage would be set aside with the rest
        gc.freeze()
        await asyncio.sleep(SET_ASIDE_SECONDS)
        if time.monotonic() - looked_at > seconds or _held_bytes() - held > max(grown_bytes, held):
            gc.unfreeze()
            gc.collect()
            looked_at, held = time.monotonic(), _held_bytes()


def _held_bytes() -> int:
    try:
        resident_pages = MEMORY_FILE.read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(resident_pages) * resource.getpagesize()
