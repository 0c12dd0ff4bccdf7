"""The sessions of one process where calls of the control side cross: sealing, dropping, opening again, expiring.

The journal's writes take as long as a test wants.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from proxy_rig import a_spec, numbered, until

from agentic.proxy import FileJournal, ProxySettings, ScriptedEngine, SessionSpec
from agentic.proxy.errors import ProxyError, SessionSealed, UnknownSession
from agentic.proxy.events import Event, Overflowed, Sealed
from agentic.proxy.journal import decode_records, encode_record
from agentic.proxy.metrics import ProxyMetrics
from agentic.proxy.sessions import Sessions

SHORT = 0.05
"""A lifetime that is over at the first sweep."""


class HeldJournal(FileJournal):
    """Holds writing the kinds of records in `held` until `go` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, fsync=False)
        self.held: set[str] = set()
        self.waiting: list[str] = []
        self.go = asyncio.Event()

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        if self.held & {event.kind for event in events}:
            self.waiting.append(session_id)
            await self.go.wait()
        await super().append(session_id, events, is_durable)


@asynccontextmanager
async def sessions_with(journal: FileJournal, **settings: float) -> AsyncIterator[tuple[Sessions, ProxyMetrics]]:
    """Started, and stopped at the end."""
    metrics = ProxyMetrics()
    sessions = Sessions(ScriptedEngine(numbered), journal, ProxySettings.model_validate(settings), metrics)
    await sessions.start()
    try:
        yield sessions, metrics
    finally:
        await sessions.stop()


def records(folder: Path) -> dict[str, list[str]]:
    """The kinds of records in each journal."""
    return {
        path.name.removesuffix(".journal"): [event.kind for event in decode_records(path.read_bytes())[0]]
        for path in folder.glob("*.journal")
    }


async def test_a_session_dropped_while_it_expires_does_not_end_the_expiry_of_others(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    async with sessions_with(journal, session_lifetime_seconds=1.2) as (sessions, metrics):
        for name in ("a", "b"):
            await sessions.open(a_spec(name, lifetime_seconds=SHORT))
        await sessions.open(a_spec("later"))
        journal.held = {"sealed"}
        await until(lambda: bool(journal.waiting))
        dropping = asyncio.gather(*(sessions.drop(name) for name in ("a", "b")))
        await asyncio.sleep(0)
        journal.go.set()
        await dropping
        async with asyncio.timeout(20):
            while [info.ending for info in sessions.list() if info.session_id == "later"] != ["expired"]:
                await asyncio.sleep(0.02)
    assert metrics.sessions_open == 0


async def test_what_breaks_at_one_session_s_expiry_is_tried_again_and_ends_no_other_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaking(FileJournal):
        broken = 0

        async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
            if session_id == "a" and isinstance(events[-1], Sealed) and self.broken < 2:
                self.broken += 1
                raise RuntimeError("a bug of the journal")
            await super().append(session_id, events, is_durable)

    async with sessions_with(Breaking(tmp_path, fsync=False), session_lifetime_seconds=SHORT) as (sessions, metrics):
        for name in ("a", "b"):
            await sessions.open(a_spec(name))
        async with asyncio.timeout(20):
            while metrics.sessions_expired < 2:
                await asyncio.sleep(0.02)
    assert caplog.text.count("a bug of the journal") >= 2


async def test_a_session_that_was_sealed_first_does_not_count_as_expired(tmp_path: Path) -> None:
    journal = HeldJournal(tmp_path)
    async with sessions_with(journal) as (sessions, metrics):
        await sessions.open(a_spec("a", lifetime_seconds=SHORT))
        journal.held = {"sealed"}
        sealing = asyncio.create_task(sessions.seal("a"))
        await until(lambda: bool(journal.waiting))
        await asyncio.sleep(1.3)  # the sweep comes, and waits for the same seal
        journal.go.set()
        assert (await sealing).ending == "sealed"
        await asyncio.sleep(0.05)
        assert (metrics.sessions_expired, sessions.list()) == (0, [])


type Doing = Callable[[Sessions, SessionSpec], Awaitable[object]]
CROSSING: dict[str, tuple[str, Doing]] = {
    "seal": ("sealed", lambda sessions, spec: sessions.seal(spec.session_id)),
    "expire": ("sealed", lambda sessions, spec: sessions.seal(spec.session_id, "expired")),
    "open": ("opened", lambda sessions, spec: sessions.open(spec)),
    "drop": ("sealed", lambda sessions, spec: sessions.drop(spec.session_id)),
}


@pytest.mark.parametrize("doing", CROSSING)
async def test_nothing_is_written_to_a_dropped_session_s_journal_and_its_name_is_free(
    tmp_path: Path, doing: str
) -> None:
    journal = HeldJournal(tmp_path)
    kind, call = CROSSING[doing]
    async with sessions_with(journal) as (sessions, metrics):
        if doing != "open":
            await sessions.open(a_spec("a"))
        journal.held = {kind}
        crossing = asyncio.ensure_future(call(sessions, a_spec("a")))
        await asyncio.sleep(0.01)
        drops = [asyncio.create_task(sessions.drop("a")) for _ in range(2)]
        await asyncio.sleep(0.01)
        journal.go.set()
        await asyncio.wait([crossing, *drops])
        assert all(drop.exception() is None for drop in drops)
        assert crossing.exception() is None or isinstance(crossing.exception(), ProxyError)
        assert (records(tmp_path), sessions.list(), metrics.sessions_open) == ({}, [], 0)
        journal.held = set()
        await sessions.open(a_spec("a"))
        assert records(tmp_path) == {"a": ["opened"]}
    async with sessions_with(FileJournal(tmp_path, fsync=False)) as (sessions, _):
        assert [info.session_id for info in sessions.list()] == ["a"]


async def test_what_is_still_to_be_noted_when_a_session_is_dropped_is_not_written_afterwards(tmp_path: Path) -> None:
    async with sessions_with(FileJournal(tmp_path, fsync=False)) as (sessions, _):
        await sessions.open(a_spec("a"))
        live = await sessions.find("a")
        await sessions.drop("a")
        live.chore(Overflowed())  # as a client does that hangs up only now
        with pytest.raises(UnknownSession):
            await live.record(Overflowed())
        await asyncio.sleep(0.02)
    assert records(tmp_path) == {}


async def test_what_is_asked_of_a_sealed_session_is_refused_without_reading_it(tmp_path: Path) -> None:
    class Counting(FileJournal):
        reads = 0

        async def read(self, session_id: str) -> list[Event]:
            self.reads += 1
            return await super().read(session_id)

    journal = Counting(tmp_path, fsync=False)
    async with sessions_with(journal) as (sessions, _):
        await sessions.open(a_spec("a"))
        await sessions.seal("a")
        journal.reads = 0
        for call in (sessions.find, sessions.heartbeat):
            with pytest.raises(SessionSealed):
                await call("a")
            with pytest.raises(UnknownSession):
                await call("b")
        assert journal.reads == 0
        assert await sessions.fetch("a") == await sessions.seal("a")


async def test_a_damaged_journal_that_two_open_at_once_is_set_aside_once(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(encode_record(Overflowed()))
    sessions = Sessions(ScriptedEngine(numbered), FileJournal(tmp_path, fsync=False), ProxySettings(), ProxyMetrics())
    await asyncio.gather(*(sessions.open(a_spec("a")) for _ in range(3)))
    assert (records(tmp_path), len(list(tmp_path.glob("a.journal*")))) == ({"a": ["opened"]}, 2)
