"""Runs tools on an event loop of their own, so that one that blocks holds up no rollout.

A tool is others' code: `time.sleep` in a coroutine would stop every trajectory of the worker for good. Here it stops
one thread; the call is given up when its time is over, and the next calls get a new thread.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

_ANSWERS_SECONDS = 1.0
"""A loop that does not come round within this is blocked."""


class ToolThread:
    """One loop in a daemon thread, made when it is needed and replaced when a tool blocks it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call[T](self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """The result of `work`. Raises what it raises, and TimeoutError when it takes longer than `seconds`."""
        loop = self._running_loop()
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
        except TimeoutError:
            await self._leave_if_blocked(loop)
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="tools", daemon=True).start()
        return self._loop

    async def _leave_if_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        ping = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_come_round(), loop))
        try:
            async with asyncio.timeout(_ANSWERS_SECONDS):
                await ping
        except TimeoutError:
            if self._loop is loop:
                self._loop = None


async def _come_round() -> None:
    """Nothing, on the loop."""
