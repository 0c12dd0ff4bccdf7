"""What one process appends to a log is shown by another, whole lines at a time and nothing twice."""

import asyncio
from pathlib import Path

from agentic.training.relay import relayed


async def test_only_what_is_appended_meanwhile_is_shown_and_all_of_it(tmp_path: Path) -> None:
    log, shown = tmp_path / "trainer.log", list[str]()
    log.write_text("of an earlier start\n")
    async with relayed(log, shown.append):
        with log.open("a") as file:
            file.write("one\nhal")
            file.flush()
            async with asyncio.timeout(20):
                while not shown:
                    await asyncio.sleep(0.05)
            assert "".join(shown) == "one\n", "a line that is not whole waits"
            file.write("f\nlast")
    assert "".join(shown) == "one\nhalf\nlast"


async def test_a_log_that_is_made_later_and_a_line_without_end_are_shown(tmp_path: Path) -> None:
    log, shown = tmp_path / "engine.log", list[str]()
    async with relayed(log, shown.append):
        log.write_bytes(b"x" * (3 << 20))
    assert "".join(shown) == "x" * (3 << 20)


async def test_no_log_shows_nothing(tmp_path: Path) -> None:
    shown = list[str]()
    async with relayed(tmp_path / "none.log", shown.append):
        pass
    assert shown == []


async def test_a_log_that_cannot_be_read_ends_nothing_and_is_shown_once_it_can(tmp_path: Path) -> None:
    log, shown = tmp_path / "trainer.log", list[str]()
    log.mkdir()
    async with relayed(log, shown.append):
        await asyncio.sleep(0.1)
        log.rmdir()
        log.write_text("one\n")
    assert shown == ["one\n"]
    log.unlink()
    log.mkdir()
    async with relayed(log, shown.append):
        pass
    assert shown == ["one\n"]


async def test_a_log_that_is_begun_anew_is_shown_from_its_beginning(tmp_path: Path) -> None:
    log, shown = tmp_path / "trainer.log", list[str]()
    log.write_text("of an earlier start\n")
    async with relayed(log, shown.append):
        log.write_text("one\n")
    assert shown == ["one\n"]
