"""Shares one event loop between thousands of trials and everything else that lives on it.

Harbor's trials do much between two awaits: 7 to 14 ms to make one, 1 ms and more to write a result. One is harmless;
but all that become ready at the same moment run in the same turn of the loop, and a thousand agents that are released
by one weight sync would hold it for seconds. So each step of a trial, from one await to the next, takes its place here:
in one turn of the loop steps are begun until they have taken `slice_seconds`, and the others wait for a later turn.
Work that began earlier goes first: of a thousand trials that start at once the first asks its model as soon as it has
been made, and the engine need not wait until all are. What is not paced (sockets, heartbeats, the proxy) runs in
between, so that it waits for one slice and one step at most. No step is interrupted: one that blocks for long has to be
moved to a thread.

Nor is Python's collector: with a thousand trials alive, looking through all objects takes a quarter of a second. Whose
process runs many trials says so by `rare_full_collections`.
"""

import asyncio
import gc
import heapq
import itertools
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

SLICE_SECONDS = 0.01
"""Together with the longest step, the making of a trial, well below a tenth of a second also on a busy machine."""

_RELEASED = 32
"""Steps that are let go for one turn; those for which the slice does not suffice keep their place."""

_FULL_COLLECTION_EVERY = 3000
"""Collections of the middle generation; Python's own figure is 10. A trial leaves about 200 objects (25 KB) that only a
full collection finds, so that some thousands of trials may pass before one."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Within, this process looks through all its objects once in some thousands of trials."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_COLLECTION_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


class Pacer:
    """One for each event loop, made before its first trial."""

    def __init__(self, slice_seconds: float = SLICE_SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._slice_seconds = slice_seconds
        self._clock = clock
        self._spent_seconds = 0.0
        self._places, self._tickets = itertools.count(), itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """By place; of one work there may be two, of which the first was cancelled."""
        self._is_turning = False

    async def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the caller's task, each of its steps in its turn. Cancelling works as without."""
        return await _steps(self, work, next(self._places))

    def _spend(self, seconds: float) -> None:
        self._spent_seconds += seconds
        self._expect_turn()

    def _must_wait(self) -> bool:
        return bool(self._waiting) or self._spent_seconds >= self._slice_seconds

    async def _turn(self, place: int) -> None:
        while True:
            waiting = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (place, next(self._tickets), waiting))
            self._expect_turn()
            await waiting
            if self._spent_seconds < self._slice_seconds:
                return

    def _expect_turn(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._spent_seconds, self._is_turning = 0.0, False
        released = 0
        while self._waiting and released < _RELEASED:
            *_, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                waiting.set_result(None)
                released += 1
        if released:
            self._expect_turn()


@types.coroutine
def _steps[T](pacer: Pacer, work: Coroutine[Any, Any, T], place: int) -> Generator[Any, Any, T]:
    step: Callable[[], Any] = partial(work.send, None)
    while True:
        if pacer._must_wait():
            try:
                yield from pacer._turn(place).__await__()
            except asyncio.CancelledError as error:
                step = partial(work.throw, error)
        began = pacer._clock()
        try:
            awaited = step()
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            pacer._spend(pacer._clock() - began)
        try:
            yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the task throws in is for the work to handle
            step = partial(work.throw, error)
        else:
            step = partial(work.send, None)
