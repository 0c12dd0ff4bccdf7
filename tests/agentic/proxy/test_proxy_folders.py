"""One journal folder, and who works on it: a single process, fleets of any size after each other, never two at once."""

import asyncio
import sys
from functools import partial
from pathlib import Path

import fleet_parts
import pytest
from proxy_rig import a_spec, running, user

from agentic.proxy import ControlClient, ProxyError, ProxyServer, ProxySettings, make_renderer
from agentic.proxy.events import Opened
from agentic.proxy.fleet import ProxyFleet
from agentic.proxy.fleet.ownership import owner_of, redistribute, slot_directory
from agentic.proxy.journal import encode_record

NAMES = [f"s{number}" for number in range(6)]


def a_fleet(folder: Path, journal: Path) -> ProxyFleet:
    settings = ProxySettings(journal_directory=journal)
    return ProxyFleet(settings, fleet_parts.make_engine, partial(make_renderer, folder), 2)


@pytest.mark.timeout(180)
async def test_a_single_process_takes_up_the_sessions_of_a_fleet_and_a_fleet_those_of_a_single_process(
    tiny_folder: Path, tmp_path: Path
) -> None:
    async with (
        a_fleet(tiny_folder, tmp_path) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        handles = [await control.open(a_spec(name)) for name in NAMES]
        done = await control.seal(NAMES[0])
    async with running(tiny_folder, journal_directory=tmp_path) as rig:
        assert {info.session_id for info in await rig.server.list()} == set(NAMES[1:])
        assert await rig.server.fetch(NAMES[0]) == done
        for handle in handles[1:]:
            moved = handle.model_copy(update={"base_url": f"{rig.server.agent_url}/s/{handle.session_id}/v1"})
            assert (await rig.ask(moved, [user("hi")])).status == 200
    async with (
        a_fleet(tiny_folder, tmp_path) as fleet,
        ControlClient(fleet.control_url, fleet.control_key) as control,
    ):
        assert {info.session_id: info.calls for info in await control.list()} == dict.fromkeys(NAMES[1:], 1)


def test_journals_move_between_slots_and_a_folder_of_one_process(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.journal").write_bytes(name.encode())
    for slots in (3, 0, 2, 1, 0):
        redistribute(tmp_path, slots)
        for name in NAMES:
            home = slot_directory(tmp_path, owner_of(name, slots)) if slots else tmp_path
            assert (home / f"{name}.journal").read_bytes() == name.encode()
        assert len(list(tmp_path.rglob("*.journal"))) == len(NAMES)


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_of_two_journals_of_one_name_none_is_written_over(
    tmp_path: Path, slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    written = set()
    for place in (tmp_path, *(tmp_path / f"slot-{number}" for number in range(5))):
        place.mkdir(exist_ok=True)
        (place / "a.journal").write_text(place.name)
        written.add(place.name)
    redistribute(tmp_path, slots)
    home = slot_directory(tmp_path, owner_of("a", slots)) if slots else tmp_path
    assert (home / "a.journal").read_text() == home.name
    assert {path.read_text() for path in tmp_path.rglob("a.journal*")} == written
    assert len(list(tmp_path.rglob("*.journal"))) == 1
    assert caplog.text.count("a.journal.twin") == 5
    redistribute(tmp_path, slots)
    assert {path.read_text() for path in tmp_path.rglob("a.journal*")} == written


SERVE = """
import asyncio, sys
sys.path[:0] = sys.argv[4:]
from functools import partial
from pathlib import Path
import fleet_parts
from agentic.proxy import ProxyServer, ProxySettings, make_renderer
from agentic.proxy.fleet import ProxyFleet
async def main():
    make, settings = partial(make_renderer, Path(sys.argv[1])), ProxySettings(journal_directory=Path(sys.argv[2]))
    if sys.argv[3] == "alone":
        await ProxyServer(settings, fleet_parts.make_engine(), make()).start()
    else:
        await ProxyFleet(settings, fleet_parts.make_engine, make, 2).start()
    print("up", flush=True)
    await asyncio.sleep(120)
asyncio.run(main())
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", ["alone", "fleet"])
async def test_of_two_proxies_on_one_folder_the_second_is_refused_until_the_first_has_ended(
    tiny_folder: Path, tmp_path: Path, first: str
) -> None:
    here = Path(__file__).parents[3]
    arguments = [str(tiny_folder), str(tmp_path), first, str(here), str(here / "tests" / "doubles")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"up\n"
        with pytest.raises(ProxyError, match=f"another proxy works on {tmp_path}"):
            await ProxyServer(
                ProxySettings(journal_directory=tmp_path), fleet_parts.make_engine(), make_renderer(tiny_folder)
            ).start()
        if first == "alone":
            with pytest.raises(ProxyError, match=f"another proxy works on {tmp_path}"):
                await a_fleet(tiny_folder, tmp_path).start()
    finally:
        process.kill()
        await process.wait()
    async with running(tiny_folder, journal_directory=tmp_path) as rig:  # Without its workers' end there is no start.
        assert await rig.server.list() == []


async def test_a_start_that_fails_and_a_stop_let_go_of_the_folder(tiny_folder: Path, tmp_path: Path) -> None:
    newer = tmp_path / "a.journal"
    newer.write_bytes(encode_record(Opened(spec=a_spec("a"), at=1.0, schema_version=99)))
    for _ in range(2):
        with pytest.raises(ProxyError, match="newer"):
            async with running(tiny_folder, journal_directory=tmp_path):
                pass
    newer.unlink()
    for _ in range(2):
        async with running(tiny_folder, journal_directory=tmp_path):
            pass
