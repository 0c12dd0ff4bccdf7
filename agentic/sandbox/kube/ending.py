"""Calls that go to their end: when we are cancelled meanwhile, and whatever others beside them raise."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)


async def to_its_end[T](call: Coroutine[Any, Any, T]) -> T:
    """Let a call that makes something finish although we are cancelled meanwhile, so that what it made is known."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


async def each(calls: Iterable[tuple[str, Awaitable[object]]]) -> None:
    """Do all of it at once, whatever one of them raises, which is told with these words."""
    named = list(calls)
    results = await asyncio.gather(*(call for _, call in named), return_exceptions=True)
    for (words, _), result in zip(named, results, strict=True):
        if isinstance(result, Exception):
            log.warning("%s: %s", words, result or type(result).__name__)
