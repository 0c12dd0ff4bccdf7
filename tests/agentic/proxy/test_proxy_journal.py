"""Durability: a journal cut anywhere is an earlier state of the same session, and what was answered survives a kill."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxy_rig import TOKENIZER, Answer, a_spec, ids_of, running, says, user

from agentic.proxy import FileJournal, Journal, MemoryJournal, ScriptedReply, SealedSession
from agentic.proxy.errors import JournalError
from agentic.proxy.events import Committed, Delivered, Event, Opened, Sealed, Started
from agentic.proxy.journal import decode_records, encode_record
from agentic.proxy.session import Session


def recorded() -> list[Event]:
    """Two calls of a session, the second one a branch."""
    events: list[Event] = [Opened(spec=a_spec(), at=1.0)]
    for number, text in enumerate(("first", "second")):
        ids = ids_of(text)
        events.append(Started(call=number, body_digest=text, idempotency_key=None, overridden=()))
        events.append(
            Committed(
                call=number,
                at=2.0 + number,
                anchor=None,
                context=ids_of("prompt"),
                first_prompt=6,
                ids=ids,
                logprobs=(-0.125,) * len(ids),
                versions=(number,) * len(ids),
                finish="stop",
                stop_reason=None,
                delivered=True,
                answered=True,
                state_key=f"key {number}",
                verbatim="v",
            )
        )
    return [*events, Delivered(call=1, delivered=False)]


EVENTS = recorded()
WHOLE = b"".join(encode_record(event) for event in EVENTS)
ENDS = [len(b"".join(encode_record(event) for event in EVENTS[:count])) for count in range(len(EVENTS) + 1)]


@given(st.integers(0, len(WHOLE)))
def test_a_journal_cut_at_any_byte_gives_the_records_before_the_cut(cut: int) -> None:
    events, used = decode_records(WHOLE[:cut])
    count = max(n for n, end in enumerate(ENDS) if end <= cut)
    assert (events, used) == (EVENTS[:count], ENDS[count])


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_damaged_byte_hides_its_record_and_later_ones_but_never_changes_one(position: int, flip: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] ^= flip
    events, _ = decode_records(bytes(damaged))
    intact = max(n for n, end in enumerate(ENDS) if end <= position)
    assert events == EVENTS[:intact]


@given(st.integers(1, len(EVENTS)))
def test_replaying_a_beginning_gives_the_state_that_was(count: int) -> None:
    live = Session(EVENTS[0])  # type: ignore[arg-type]
    for event in EVENTS[1:count]:
        live.apply(event)
    replayed = Session(decode_records(WHOLE[: ENDS[count]])[0][0])  # type: ignore[arg-type]
    for event in decode_records(WHOLE[: ENDS[count]])[0][1:]:
        replayed.apply(event)
    assert replayed.seal(9.0) == live.seal(9.0)


@pytest.fixture(params=["memory", "file", "file with fsync"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    """Each journal there is: one contract for all."""
    if request.param == "memory":
        return MemoryJournal()
    return FileJournal(tmp_path / "journal", fsync="fsync" in request.param)


async def test_every_journal_keeps_order_separates_sessions_and_forgets(journal: Journal) -> None:
    assert await journal.read("a") == []
    await journal.append("a", EVENTS[:2])
    await journal.append("b", EVENTS[:1])
    await journal.append("a", EVENTS[2:])
    assert await journal.read("a") == EVENTS
    assert await journal.session_ids() == ["a", "b"]
    assert not await journal.is_sealed("a")
    await journal.append("a", [Sealed(at=9.0, digest="d" * 64)])
    assert [await journal.is_sealed(name) for name in ("a", "b", "unknown")] == [True, False, False]
    await journal.remove("a")
    await journal.remove("a")
    assert await journal.session_ids() == ["b"]


async def test_appending_after_a_cut_goes_on_behind_the_last_whole_record(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    (tmp_path / "a.journal").write_bytes(WHOLE[: ENDS[3] + 7])
    assert await journal.read("a") == EVENTS[:3]
    await journal.append("a", EVENTS[3:])
    assert await journal.read("a") == EVENTS


@given(st.integers(0, 400))
def test_a_seal_that_is_cut_is_none(cut: int) -> None:
    seal = encode_record(Sealed(at=9.0, digest="d" * 64))
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.journal").write_bytes(WHOLE + seal[:cut])
        sealed = asyncio.run(FileJournal(Path(folder), fsync=False).is_sealed("a"))
    assert sealed == (cut >= len(seal))


async def test_a_journal_that_cannot_be_written_says_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(JournalError, match="journal_directory"):
        await FileJournal(tmp_path / "taken", fsync=False).append("a", EVENTS[:1])


async def test_a_newer_layout_is_refused_not_skipped(tmp_path: Path) -> None:
    newer = Opened(spec=a_spec(), at=1.0, schema_version=99)
    (tmp_path / "a.journal").write_bytes(encode_record(newer))
    with pytest.raises(JournalError, match="99 is newer"):
        await FileJournal(tmp_path, fsync=False).read("a")


async def test_a_sealed_session_is_the_same_after_a_restart(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    async with running(tiny_folder, journal_directory=folder) as rig:
        handle = await rig.server.open(a_spec())
        await rig.ask(handle, [user("hi")])
        sealed = await rig.server.seal("rollout-1")
    async with running(tiny_folder, journal_directory=folder) as rig:
        assert await rig.server.seal("rollout-1") == sealed
        await rig.server.drop("rollout-1")
    assert list(folder.glob("*.journal")) == []


async def test_an_open_session_goes_on_after_a_restart(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    async with running(tiny_folder, journal_directory=folder) as rig:
        first = await rig.ask(await rig.server.open(a_spec()), [user("hi")])
    async with running(tiny_folder, journal_directory=folder) as rig:
        handle = await rig.server.open(a_spec())
        assert (await rig.ask(handle, [user("hi"), first.message, user("more")])).status == 200
    async with running(tiny_folder, journal_directory=folder) as rig:
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    assert sum(only.response_mask) == sealed.sampled_tokens == 2 * len(first.text) + 2


async def test_sealing_that_its_caller_gave_up_is_written_once(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    async with running(tiny_folder, journal_directory=folder, journal_fsync=True) as rig:
        await rig.ask(await rig.server.open(a_spec()), [user("hi")])
        given_up = asyncio.create_task(rig.server.seal("rollout-1"))
        await asyncio.sleep(0)
        given_up.cancel()
        sealed = await rig.server.seal("rollout-1")
    assert (folder / "rollout-1.journal").read_bytes().count(b'"kind":"sealed"') == 1
    async with running(tiny_folder, journal_directory=folder) as rig:
        assert await rig.server.seal("rollout-1") == sealed


class FillingJournal(MemoryJournal):
    """Has no space for the kinds of events named in `refused`."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        if self.refused & {event.kind for event in events}:
            raise JournalError("no space left")
        await super().append(session_id, events, is_durable)


async def test_a_call_whose_intent_cannot_be_written_samples_nothing(tiny_folder: Path) -> None:
    journal = FillingJournal()
    async with running(tiny_folder, journal=journal) as rig:
        handle = await rig.server.open(a_spec())
        journal.refused = {"started"}
        refused: Answer = await rig.ask(handle, [user("hi")])
        assert (refused.status, "no space left" in refused.body["error"]["message"]) == (503, True)
        journal.refused = set()
        assert (await rig.ask(handle, [user("hi")])).status == 200
        sealed = await rig.server.seal("rollout-1")
    assert (len(rig.engine.received), sealed.calls, sealed.complete) == (1, 1, True)


async def test_what_was_sampled_but_could_not_be_written_is_never_answered_and_kept_without_loss(
    tiny_folder: Path,
) -> None:
    journal = FillingJournal()
    async with running(tiny_folder, journal=journal) as rig:
        handle = await rig.server.open(a_spec())
        journal.refused = {"committed"}
        refused = await rig.ask(handle, [user("hi")])
        assert (refused.status, refused.body["error"]["code"]) == (503, "capture_unavailable")
        with pytest.raises(JournalError, match="no space left"):
            await rig.server.seal("rollout-1")
        journal.refused = set()
        sealed = await rig.server.seal("rollout-1")
    assert (sealed.complete, sealed.cut) == (True, {"journal": 1})
    assert 0 < sealed.sampled_tokens == sealed.undelivered_tokens


async def test_a_call_that_the_end_of_the_process_cut_failed_and_its_retry_samples_anew(
    tiny_folder: Path, tmp_path: Path
) -> None:
    journal = FileJournal(tmp_path, fsync=False)
    started = Started(call=0, body_digest="b", idempotency_key=None, overridden=(), at=2.0)
    await journal.append("rollout-1", [Opened(spec=a_spec(), at=1.0), started])
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        (info,) = await rig.server.list()
        assert (info.calls, info.running) == (1, 0)
        assert (await rig.ask(await rig.server.open(a_spec()), [user("hi")])).status == 200
        sealed = await rig.server.seal("rollout-1")
    assert (sealed.complete, sealed.calls, sealed.cut) == (True, 2, {"restart": 1})


async def test_the_intent_of_a_call_is_written_before_the_engine_is_asked(tiny_folder: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def script(*_: Any) -> ScriptedReply:
        events, _whole = decode_records((tmp_path / "rollout-1.journal").read_bytes())
        seen.extend(event.kind for event in events)
        return says("ok")

    async with running(tiny_folder, script, journal_directory=tmp_path) as rig:
        await rig.ask(await rig.server.open(a_spec()), [user("hi")])
    assert seen == ["opened", "started"]


FILL = """
import asyncio, json, resource, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from proxy_rig import a_spec, running, user
async def main():
    folder = Path(sys.argv[2])
    async with running(Path(sys.argv[1]), journal_directory=folder, journal_fsync=True) as rig:
        handle = await rig.server.open(a_spec())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
        answers = [await rig.ask(handle, [user(f"question {n}")]) for n in range(12)]
        statuses = [answer.status for answer in answers]
        texts = [answer.text for answer in answers if answer.status == 200]
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        texts.append((await rig.ask(handle, [user("after")])).text)
        print(json.dumps({"statuses": statuses, "texts": texts}), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_on_a_full_disk_calls_fail_cleanly_and_nothing_answered_is_lost(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    here = Path(__file__).parents[3]
    arguments = [str(tiny_folder), str(folder), str(here), str(here / "tests" / "doubles")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FILL, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    told = json.loads(await process.stdout.readline())
    process.kill()
    await process.wait()
    assert told["statuses"][0] == 200
    assert set(told["statuses"]) == {200, 503}
    async with running(tiny_folder, journal_directory=folder) as rig:
        sealed = await rig.server.seal("rollout-1")
    assert sealed.complete
    assert _trained(sealed) == sorted(told["texts"])


def _trained(sealed: SealedSession) -> list[str]:
    texts = []
    for trajectory in sealed.trajectories:
        pairs = zip(trajectory.response_ids, trajectory.response_mask, strict=True)
        texts.append(str(TOKENIZER.decode([token for token, mask in pairs if mask])))
    return sorted(text for text in texts if text)


async def test_records_of_many_sessions_reach_the_disk_together(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, fsync=True)
    names = [f"s{n}" for n in range(100)]
    await asyncio.gather(*(journal.append(name, EVENTS[:2]) for name in names))
    await asyncio.gather(*(journal.append(name, EVENTS[2:]) for name in names))
    for name in names:
        assert await journal.read(name) == EVENTS


SERVE = """
import asyncio, json, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from proxy_rig import a_spec, running
async def main():
    async with running(Path(sys.argv[1]), journal_directory=Path(sys.argv[2]), journal_fsync=True) as rig:
        handle = await rig.server.open(a_spec())
        print(json.dumps(handle.model_dump()), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_what_was_answered_survives_sigkill(tiny_folder: Path, tmp_path: Path) -> None:
    import aiohttp

    folder = tmp_path / "journal"
    here = Path(__file__).parents[3]
    arguments = [str(tiny_folder), str(folder), str(here), str(here / "tests" / "doubles")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVE, *arguments, stdout=pipe)
    assert process.stdout is not None
    handle = json.loads(await process.stdout.readline())
    headers = {"Authorization": f"Bearer {handle['api_key']}"}
    url, body = f"{handle['base_url']}/chat/completions", {"messages": [user("hi")]}
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=body) as response:
        answer = (await response.json())["choices"][0]["message"]["content"]
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    async with running(tiny_folder, journal_directory=folder) as rig:
        sealed = await rig.server.seal("rollout-1")
    (only,) = sealed.trajectories
    trained = [i for i, mask in zip(only.response_ids, only.response_mask, strict=True) if mask]
    assert TOKENIZER.decode(trained) == answer
