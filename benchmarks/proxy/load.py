"""The load: sessions that talk as agents do, on a timetable or as fast as they are answered.

A session has 20 turns; turn by turn its prompt grows by the same number of tokens up to the wanted length. So that all
lengths are there from the first second on, a session begins at a turn of its own, with what would have come before in
its first message. Only what comes after each session's first call counts.

On a timetable a call's latency counts from when it was due, so a target that falls behind cannot hide it.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from .client import Connection
from .machine import Usage
from .model import Text
from .targets import Target

TURNS = 20
FIRST_CALLS_AT_ONCE = 250
PAUSE_SECONDS = 0.1
"""Before a client asks again that was refused."""
GRACE_SECONDS = 5.0
"""How long calls of the window may still be answered after it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How long conversations get."""

    prompt_tokens: int
    """At turn 20."""
    reply_tokens: int

    @property
    def new_tokens(self) -> int:
        """What a turn adds: the reply before it, and an observation."""
        return self.prompt_tokens // TURNS


@dataclass(slots=True)
class Measured:
    """What a load saw."""

    latencies: list[float] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    completed: int = 0
    """Calls answered within the window, but for failures."""
    unanswered: list[float] = field(default_factory=list)
    """How long calls of the window have waited that had no answer some seconds after it."""
    ended: list[dict[str, Any]] = field(default_factory=list)


class Talk:
    """One session after another on one connection."""

    def __init__(self, target: Target, text: Text, shape: Shape, name: str, first_turn: int) -> None:
        self._target, self._text, self._shape = target, text, shape
        self.name, self._generation = name, 0
        self._turn = first_turn
        self._parts: list[bytes] = []
        self._connection: Connection | None = None

    async def call(self) -> int:
        """One turn; gives the status, 0 where the connection broke."""
        if self._connection is None:
            await self.open()
        if self._connection is None:
            raise RuntimeError("no connection")
        body = b'{"model":"policy","messages":[' + b",".join(self._parts) + b"]}"
        try:
            answer = await self._connection.post("/v1/chat/completions", body)
        except OSError:
            return 0
        if answer.status == 200:
            content = orjson.loads(answer.body)["choices"][0]["message"]["content"]
            observation = self._text.take(max(self._shape.new_tokens - self._shape.reply_tokens, 8))
            self._parts += [_message("assistant", content), _message("user", observation)]
        self._turn += 1
        return answer.status

    async def open(self) -> None:
        """Begin a session."""
        self._generation += 1
        opened = await self._target.open(self.session)
        self._connection = Connection(opened.base_url, opened.headers)
        self._parts = [_message("user", self._text.take(self._shape.new_tokens * self._turn))]

    @property
    def session(self) -> str:
        """Its name now."""
        return f"{self.name}-{self._generation}"

    @property
    def is_over(self) -> bool:
        """Whether all turns are done."""
        return self._turn > TURNS

    async def end(self) -> dict[str, Any]:
        """End the session; the next call begins another, at turn 1."""
        if self._connection is None:
            return {}
        self.close()
        self._turn = 1
        return await self._target.end(self.session)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions, how often they call, and for how long."""

    sessions: int
    warm_seconds: float
    window_seconds: float
    calls_per_second: float | None
    """None: each session calls again as soon as it is answered."""


async def drive(target: Target, text: Text, shape: Shape, load: Load) -> Measured:
    """Put the load on; sessions that are open at the end stay open."""
    talks = [Talk(target, text, shape, f"load-{number}", 1 + number % (TURNS - 1)) for number in range(load.sessions)]
    await in_groups([talk.open() for talk in talks], 32)
    # A session's first call brings a whole history at once, ten turns of new text: left to the timetable they would
    # come at its pace, and what they leave undone would be counted to the calls of the window.
    await in_groups([talk.call() for talk in talks], FIRST_CALLS_AT_ONCE)
    begin = time.perf_counter() + 0.2
    window = begin + load.warm_seconds, begin + load.warm_seconds + load.window_seconds
    measured, pending = Measured(), dict[str, float]()
    runs = [
        asyncio.create_task(_run(talk, begin + _offset(load, number), load, window, measured, pending))
        for number, talk in enumerate(talks)
    ]
    await asyncio.sleep(window[0] - time.perf_counter())
    before, since = _usage(target), time.perf_counter()
    await asyncio.sleep(window[1] - time.perf_counter())
    after, measured.seconds = _usage(target), time.perf_counter() - since
    measured.cpu_seconds = after.cpu_seconds - before.cpu_seconds
    await asyncio.wait(runs, timeout=GRACE_SECONDS if load.calls_per_second else 0.0)
    if load.calls_per_second:  # else they are those that the end of the window found under way
        measured.unanswered = [time.perf_counter() - due for due in pending.values() if window[0] <= due < window[1]]
    for run in runs:
        run.cancel()
    await asyncio.wait(runs)
    for talk in talks:
        talk.close()
    for run in runs:
        if not run.cancelled() and run.exception() is not None:
            raise RuntimeError("a session broke") from run.exception()
    return measured


def _offset(load: Load, number: int) -> float:
    spread = load.sessions / load.calls_per_second if load.calls_per_second else load.warm_seconds / 2
    return spread * number / load.sessions


async def _run(
    talk: Talk, due: float, load: Load, window: tuple[float, float], measured: Measured, pending: dict[str, float]
) -> None:
    period = load.sessions / load.calls_per_second if load.calls_per_second else 0.0
    while due < window[1]:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        pending[talk.name] = due
        status = await talk.call()
        now = time.perf_counter()
        del pending[talk.name]
        measured.completed += status == 200 and window[0] <= now < window[1]
        if window[0] <= due < window[1]:
            measured.latencies.append(now - due)
            if status != 200:
                measured.failures[status] = measured.failures.get(status, 0) + 1
        if status != 200:
            await asyncio.sleep(PAUSE_SECONDS)
        if talk.is_over:
            measured.ended.append(await talk.end())
        due = due + period if period else time.perf_counter()


def _usage(target: Target) -> Usage:
    return Usage(0.0, 0) if target.pid is None else Usage.of(target.pid)


async def in_groups(work: Sequence[Awaitable[object]], size: int) -> None:
    """Await all, so many at a time."""
    for start in range(0, len(work), size):
        await asyncio.gather(*work[start : start + size])


def _message(role: str, content: str) -> bytes:
    return orjson.dumps({"role": role, "content": content})
