"""Journals that cannot be read: nothing that the rim takes makes one, and one stops neither the proxy nor an export.

A damaged file is named and set aside as it is; a newer layout is no damage and is refused.
"""

import zlib
from pathlib import Path

import pytest
from proxy_rig import a_spec, ids_of, numbered, running, user
from pydantic import ValidationError

from agentic.proxy import ControlClient, FileJournal, Sampling, ScriptedReply, SessionSpec
from agentic.proxy.__main__ import parse_arguments
from agentic.proxy.errors import ControlError, InvalidRequest, JournalError
from agentic.proxy.events import Committed, Delivered, Event, Failed, Opened, Sealed, Started
from agentic.proxy.export import main as export
from agentic.proxy.journal import encode_record
from agentic.proxy.models import Resume

NO_NUMBERS = [float("inf"), float("-inf"), float("nan")]
START = Started(call=0, body_digest="b", idempotency_key=None, overridden=(), at=2.0)
OPENED = encode_record(Opened(spec=a_spec("bad"), at=1.0))


def line(body: bytes) -> bytes:
    """A record with the right sum, whatever it says."""
    return b"%08x %s\n" % (zlib.crc32(body), body)


def lines(*events: Event) -> bytes:
    return OPENED + b"".join(encode_record(event) for event in events)


def committed(anchor: int | None) -> bytes:
    fields = {"kind": "committed", "call": 0, "at": 3.0, "anchor": anchor, "context": ids_of("p"), "first_prompt": 1}
    fields |= {"ids": (1,), "logprobs": (-0.5,), "versions": (0,), "finish": "stop", "stop_reason": None}
    fields |= {"delivered": True, "answered": True, "state_key": None, "verbatim": None}
    return encode_record(Committed.model_validate(fields))


DAMAGED = {
    "a number that is none": line(OPENED[9:-1].replace(b'"temperature":1.0', b'"temperature":null')),
    "a version that fits no array": OPENED
    + line(committed(None)[9:-1].replace(b'"versions":[0]', b'"versions":[4294967296]')),
    "a call that was never started": lines(Delivered(call=7, delivered=True)),
    "a node that is not there": lines(START) + committed(3),
    "two commits of one call": lines(START) + committed(None) * 2,
    "no opening": encode_record(Failed(call=0)),
    "a seal only": encode_record(Sealed(at=9.0, digest="d" * 64)),
    "another seal than its own": lines(Sealed(at=9.0, digest="d" * 64)),
    "a seal of another layout": OPENED + line(b'{"kind":"sealed","at":"noon"}'),
    "something behind the seal": lines(Sealed(at=9.0, digest="d" * 64), Failed(call=0)),
    "a damaged first record": b"x" + OPENED[1:] + encode_record(START),
    "no records at all": b"hello\n" * 3,
}


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_sampling_takes_numbers_only(name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        Sampling.model_validate({"temperature": 1.0, "max_tokens": 9} | {name: value})


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_lifetime_is_a_number(value: float) -> None:
    with pytest.raises(ValidationError):
        a_spec(lifetime_seconds=value)


@pytest.mark.parametrize("version", [-1, 2**32, 1796002192000000])
async def test_a_version_that_cannot_be_recorded_is_refused(tiny_folder: Path, version: int) -> None:
    with pytest.raises(ValidationError):
        Resume(version=version)
    async with running(tiny_folder) as rig:
        with pytest.raises(InvalidRequest, match="version"):
            await rig.server.resume(version)


@pytest.mark.parametrize("version", ["-1", str(2**32), "one"])
def test_the_command_takes_no_such_version_either(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--engine", "http://e", "--tokenizer", "t", f"--policy-version={version}"])
    assert "--policy-version" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["version", "id", "negative id"])
async def test_what_an_engine_says_that_cannot_be_recorded_masks_the_session_and_harms_no_journal(
    tiny_folder: Path, tmp_path: Path, what: str
) -> None:
    ids = {"version": (1,), "id": (2**32,), "negative id": (-1,)}[what]

    def script(*_: object) -> ScriptedReply:
        return ScriptedReply(ids, version=2**32 if what == "version" else 0)

    async with running(tiny_folder, script, journal_directory=tmp_path) as rig:
        assert (await rig.ask(await rig.server.open(a_spec()), [user("hi")])).status == 502
        first = (tmp_path / "rollout-1.journal").read_bytes()
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        assert [info.session_id for info in await rig.server.list()] == ["rollout-1"]
        sealed = await rig.server.seal("rollout-1")
    assert (b"committed" in first, sealed.calls, sealed.sampled_tokens) == (False, 1, 0)


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_damaged_journal_is_named_and_set_aside_and_stops_nothing(
    tiny_folder: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        await rig.ask(await rig.server.open(a_spec("good")), [user("hi")])
        await rig.ask(await rig.server.open(a_spec("done")), [user("hi")])
        sealed = await rig.server.seal("done")
    (tmp_path / "bad.journal").write_bytes(DAMAGED[damage])
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        assert [info.session_id for info in await rig.server.list()] == ["good"]
        assert await rig.server.fetch("done") == sealed
        handle = await rig.server.open(a_spec("bad"))
        assert (await rig.ask(handle, [user("hi")])).status == 200
    assert (tmp_path / "bad.journal.damaged").read_bytes() == DAMAGED[damage]
    assert str(tmp_path / "bad.journal") in caplog.text
    async with running(tiny_folder, numbered, journal_directory=tmp_path) as rig:
        assert {info.session_id: info.calls for info in await rig.server.list()} == {"good": 1, "bad": 1}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("kind", ["arrays", "parquet"])
async def test_a_damaged_journal_is_named_by_export_and_left_out(
    tiny_folder: Path, tmp_path: Path, damage: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        await rig.server.open(a_spec("done"))
        await rig.server.seal("done")
    (tmp_path / "bad.journal").write_bytes(DAMAGED[damage])
    assert export([str(tmp_path), "--format", kind, "--output", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert ('"sessions": 1' in told.out, '"damaged": 1' in told.out) == (True, True)
    assert (str(tmp_path / "bad.journal") in told.err, told.err.count("\n")) == (True, 1)
    assert (tmp_path / "bad.journal").read_bytes() == DAMAGED[damage]


async def test_a_damaged_journal_that_is_asked_for_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    async with (
        running(tiny_folder, journal_directory=tmp_path) as rig,
        ControlClient(rig.server.control_url, rig.server.control_key) as control,
    ):
        (tmp_path / "bad.journal").write_bytes(DAMAGED["another seal than its own"])
        with pytest.raises(ControlError, match=r"bad\.journal"):
            await control.fetch("bad")


async def test_a_newer_layout_stops_the_start_with_its_file_s_name(tiny_folder: Path, tmp_path: Path) -> None:
    newer = encode_record(Opened(spec=a_spec("bad"), at=1.0, schema_version=99))
    (tmp_path / "bad.journal").write_bytes(newer)
    with pytest.raises(JournalError, match=r"bad\.journal.*99 is newer"):
        async with running(tiny_folder, journal_directory=tmp_path):
            pass
    assert (tmp_path / "bad.journal").read_bytes() == newer


async def test_reading_a_journal_changes_nothing(tmp_path: Path) -> None:
    torn = OPENED + encode_record(START)[:9]
    (tmp_path / "bad.journal").write_bytes(torn)
    assert len(await FileJournal(tmp_path, fsync=False).read("bad")) == 1
    assert (tmp_path / "bad.journal").read_bytes() == torn


def test_a_specification_survives_the_journal() -> None:
    spec = a_spec(lifetime_seconds=1e308)
    assert SessionSpec.model_validate_json(spec.model_dump_json()) == spec
