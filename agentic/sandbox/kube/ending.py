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


async def together[A, B](one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both at once. When one raises, so do we, after the other was cancelled and has ended: none outlives us."""
    tasks = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        first, second = await asyncio.gather(*tasks)
        return first, second
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def each(calls: Iterable[tuple[str, Awaitable[object]]]) -> None:
    """Do all of it at once, whatever one of them raises, which is told with these words."""
    named = list(calls)
    results = await asyncio.gather(*(call for _, call in named), return_exceptions=True)
    for (words, _), result in zip(named, results, strict=True):
        if isinstance(result, Exception):
            log.warning("%s: %s", words, result or type(result).__name__)
