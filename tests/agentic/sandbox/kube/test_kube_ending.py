"""Calls that end together."""

import asyncio

import pytest

from agentic.sandbox.kube.ending import to_its_end, together


async def later(words: str, told: list[str], seconds: float = 0.05) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        told.append(f"{words} was cancelled")
        raise
    told.append(words)
    return words


async def failing() -> None:
    await asyncio.sleep(0)
    raise ValueError("no")


async def test_two_that_end_well_give_both_results() -> None:
    assert await together(later("one", []), later("two", [])) == ("one", "two")


async def test_when_one_raises_the_other_has_ended_before_we_do() -> None:
    told: list[str] = []
    with pytest.raises(ValueError, match="no"):
        await together(failing(), later("one", told, 60))
    with pytest.raises(ValueError, match="no"):
        await together(later("two", told, 60), failing())
    with pytest.raises(ValueError, match="no"):
        await together(to_its_end(later("three", told)), failing())
    assert told == ["one was cancelled", "two was cancelled", "three"]


async def test_when_we_are_cancelled_both_have_ended_before_we_do() -> None:
    told: list[str] = []
    running = asyncio.create_task(together(later("one", told, 60), to_its_end(later("two", told))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(told) == ["one was cancelled", "two"]
