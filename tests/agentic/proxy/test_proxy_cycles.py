"""Whatever becomes of a call, counting references frees all of it: nothing is left that only the collector finds.

Sockets are read in threads, so that no client of a library leaves anything of its own.
"""

import asyncio
import collections
import copy
import gc
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dialect_hostility import GOOD
from proxy_rig import Rig, a_spec, ids_of, running, says, text_of, until
from yarl import URL

from agentic.proxy import CallSampling, MemoryJournal, ScriptedReply, SessionHandle
from agentic.proxy.errors import EngineError, EngineRefused, JournalError
from agentic.proxy.events import Event

PATHS = sorted(GOOD)
TURNS = [path for path in PATHS if "count" not in path]
TIMES = 2
"""Calls of each kind."""
MAX_BODY_BYTES = 3 << 20
ANSWER = ids_of("an answer<|im_end|>")
NO_ROUTE = frozenset(
    ["SystemRoute", "HTTPNotFound", "HTTPMethodNotAllowed", "CIMultiDict", "dict", "set", "tuple", "method"]
)
"""What aiohttp makes where there is no route, a cycle of seven objects in itself. Neither body nor frame is in it."""
ENGINE_ERRORS: dict[str, Exception] = {
    "engine fails": EngineError("no"),
    "engine refuses": EngineRefused("no such grammar"),
    "engine overflows": EngineRefused("maximum context length", is_context_overflow=True),
    "engine breaks": RuntimeError("a bug"),
}
PLAYED: dict[str, ScriptedReply] = {
    "engine says nothing": ScriptedReply(ANSWER, abort_after=0),
    "engine dies late": ScriptedReply(ANSWER, chunk_tokens=2, fail_after=1),
    "silent": ScriptedReply(ANSWER, hang_after=0),
    "talking": ScriptedReply(ANSWER, chunk_tokens=2, hang_after=1),
}


class FullDisk(MemoryJournal):
    """Takes so many records of each call, and the sessions' own."""

    room = 2

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        """As a disk that is full at some point of a call."""
        kinds = [event.kind for event in events]
        if (self.room < 2 and "committed" in kinds) or (self.room < 1 and "started" in kinds):
            raise JournalError("no space left")
        await super().append(session_id, events, is_durable)


def script(prompt: Sequence[int], _sampling: CallSampling, _request_id: str) -> ScriptedReply:
    """What the last message names."""
    text = text_of(prompt)[-200:]
    for name, error in ENGINE_ERRORS.items():
        if name in text:
            raise copy.copy(error)
    return next((reply for name, reply in PLAYED.items() if name in text), says("an answer"))


def a_body(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """A request of the API that says this."""
    said: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    match path:
        case "/responses":
            said = {"input": text}
        case "/completions":
            said = {"prompt": text}
        case "/messages":
            said |= {"max_tokens": 50}
    return {"model": "policy"} | said | fields


class Caller:
    """One agent of a session, which says what it says byte by byte."""

    def __init__(self, rig: Rig, handle: SessionHandle) -> None:
        self.rig = rig
        self._address = URL(handle.base_url)
        self.key = handle.api_key

    async def send(self, path: str, body: Any, key: str | None = None, method: str = "POST") -> bytes:
        """The answer's status line."""
        return await asyncio.to_thread(self._exchange, self._request(path, body, key, method))

    async def hang_up(self, path: str, body: Any, after: bytes = b"") -> None:
        """Send a request and go, once the engine works on it, or once this came back."""
        received = len(self.rig.engine.received)
        connection = await asyncio.to_thread(self._connect, self._request(path, body, None, "POST"))
        if after:
            await asyncio.to_thread(_read_until, connection, after)
        await until(lambda: len(self.rig.engine.received) > received)
        connection.close()
        await until(lambda: len(self.rig.engine.aborted) == len(self.rig.engine.received))

    async def break_off(self, path: str) -> None:
        """Send half a request and go."""
        whole = self._request(path, a_body(path, "half"), None, "POST")
        connection = await asyncio.to_thread(self._connect, whole[:-5])
        await asyncio.sleep(0.02)
        connection.close()

    def _request(self, path: str, body: Any, key: str | None, method: str) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {self._address.path}{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        return f"{head}x-api-key: {key or self.key}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    def _connect(self, data: bytes) -> socket.socket:
        connection = socket.create_connection((self._address.host, self._address.port))
        connection.sendall(data)
        return connection

    def _exchange(self, data: bytes) -> bytes:
        with self._connect(data) as connection:
            return _read_until(connection, None).partition(b"\r\n")[0]


def _read_until(connection: socket.socket, wanted: bytes | None) -> bytes:
    got = b""
    while (wanted is None or wanted not in got) and (data := connection.recv(1 << 16)):
        got += data
    return got


@contextmanager
def nothing_left(of_library: frozenset[str]) -> Iterator[None]:
    """Within it, what becomes garbage is freed by counting references alone, but for such objects of a library."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        left = collections.Counter(_name(thing) for thing in gc.garbage if _name(thing) not in of_library)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left, f"{left.total()} objects, most of them {left.most_common(12)}"


def _name(thing: object) -> str:
    code = getattr(thing, "f_code", None)
    return type(thing).__name__ if code is None else f"frame of {code.co_qualname}"


async def settled(rig: Rig) -> None:
    """No call runs, no connection is being closed."""
    await until(lambda: rig.server._metrics.calls_running == 0)
    await asyncio.sleep(0.02)


async def repeat(rig: Rig, call: Any, status: bytes | None = None, of_library: frozenset[str] = frozenset()) -> None:
    """The same kind of call, first for all that a process makes once, then to see what each leaves."""
    await call(0)
    await settled(rig)
    with nothing_left(of_library):
        for number in range(1, TIMES + 1):
            answer = await call(number)
            assert status is None or status in answer, answer
        await settled(rig)


@pytest.fixture(autouse=True)
def other_objects_set_aside() -> Iterator[None]:
    """So that looking for what a call has left takes no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(name="spec")
def roomy_spec() -> Any:
    """Of a session in which all the calls of a test have room."""
    return a_spec(max_calls=500, max_prompt_tokens=1000, max_body_bytes=2 << 20)


@pytest.mark.parametrize("path", PATHS)
async def test_answered_calls_and_requests_that_are_none_leave_nothing(tiny_folder: Path, spec: Any, path: str) -> None:
    async with running(tiny_folder, script, max_body_bytes=MAX_BODY_BYTES) as rig:
        caller = Caller(rig, await rig.server.open(spec))
        other = await rig.server.open(a_spec("other"))
        long = "a word " * 2000
        kinds: list[tuple[bytes, Any, dict[str, Any]]] = [
            (b" 200 ", a_body(path, "hi"), {}),
            (b" 400 ", b"{not json", {}),
            (b" 400 ", b'{"model": "\\ud83d', {}),
            (b" 400 ", b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", {}),
            (b" 400 ", a_body(path, long, model=3, messages=3, input=3, prompt={}), {}),
            (b" 400 ", b'{"pad": "' + b"x" * (3 << 19) + b'"}', {}),  # read in a thread
            (b" 401 ", a_body(path, long), {"key": "nonsense"}),
            (b" 401 ", a_body(path, long), {"key": other.api_key}),
            (b" 413 ", b"x" * (5 << 19), {}),
            (b" 413 ", b"x" * (7 << 19), {}),
        ]
        for status, body, how in kinds:
            await repeat(rig, lambda number, b=body, h=how: caller.send(path, _varied(b, number), **h), status)
        await repeat(rig, lambda _: caller.send(path, b"x", method="PUT"), b" 405 ", NO_ROUTE)
        await repeat(rig, lambda _: caller.send(f"{path}/none", b"x"), b" 404 ", NO_ROUTE)
        await repeat(rig, lambda _: caller.break_off(path))
        await rig.server.seal(spec.session_id)
        sealed = b" 410 " if path in TURNS else None
        await repeat(rig, lambda _: caller.send(path, a_body(path, long)), sealed)


def _varied(body: Any, number: int) -> Any:
    """Another request of the kind, and no retry of the one before."""
    return body | {"user": f"{number}"} if isinstance(body, dict) else body


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", TURNS)
async def test_calls_that_fail_leave_nothing(tiny_folder: Path, spec: Any, path: str, is_streamed: bool) -> None:
    async with running(tiny_folder, script, FullDisk(), request_timeout_seconds=0.05) as rig:
        caller = Caller(rig, await rig.server.open(spec))

        async def ask(number: int, text: str) -> bytes:
            return await caller.send(path, a_body(path, f"{number} {text}", stream=is_streamed))

        late = b" 200 " if is_streamed else b" 502 "
        kinds = {name: b" 400 " if "refuses" in name or "overflows" in name else b" 502 " for name in ENGINE_ERRORS}
        kinds |= {name: b" 502 " for name in PLAYED} | {"engine dies late": late, "talking": late}
        kinds |= {"word " * 1000: b" 400 ", "word " * 50_000: b" 400 ", "fine": b" 200 "}
        for text, status in kinds.items():
            await repeat(rig, lambda number, t=text: ask(number, t), status)
        for room in (1, 0):
            rig.server._sessions._journal.room = room
            await repeat(rig, lambda number, r=room: ask(number, f"{r} disk"), None if is_streamed else b" 503 ")


@pytest.mark.parametrize("path", TURNS)
async def test_clients_that_hang_up_leave_nothing(tiny_folder: Path, spec: Any, path: str) -> None:
    async with running(tiny_folder, script, abandon_grace_seconds=0.01) as rig:
        caller = Caller(rig, await rig.server.open(spec))

        async def hang_up(number: int, text: str, after: bytes, is_streamed: bool) -> None:
            await caller.hang_up(path, a_body(path, f"{number} {text}", stream=is_streamed), after)

        await repeat(rig, lambda number: hang_up(number, "silent", b"", False))
        await repeat(rig, lambda number: hang_up(number, "talking", b"", False))
        await repeat(rig, lambda number: hang_up(number, "silent s", b"", True))
        await repeat(rig, lambda number: hang_up(number, "talking s", b"data", True))


async def test_budgets_that_are_used_up_leave_nothing(tiny_folder: Path) -> None:
    async with running(tiny_folder, script) as rig:
        caller = Caller(rig, await rig.server.open(a_spec(max_calls=1)))
        path = "/chat/completions"
        await caller.send(path, a_body(path, "hi"))
        await repeat(rig, lambda number: caller.send(path, a_body(path, f"{number}")), b" 400 ")
