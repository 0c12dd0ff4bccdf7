"""The event loop of a proxy process of its own; inside somebody else's process the loop is theirs."""

import asyncio
from collections.abc import Coroutine


def run(main: Coroutine[None, None, None]) -> None:
    """Run on uvloop, or on asyncio's own loop where uvloop is not installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
    else:
        uvloop.run(main)
