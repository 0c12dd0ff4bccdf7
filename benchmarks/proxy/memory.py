"""What sessions leave in a target's memory: per turn while they are open, and nothing once they are sealed."""

import asyncio
from typing import Any

from .load import TURNS, Shape, Talk, in_groups
from .machine import Usage
from .model import Text
from .targets import Target


async def per_turn(target: Target, text: Text, shape: Shape, sessions: int, at_once: int) -> dict[str, Any]:
    """Bytes that a turn of an open session adds; as many sessions as talk at once warm the target up."""
    await in_groups(
        [_whole(Talk(target, text, shape, f"warm-{number}", 1), keep=True) for number in range(at_once)], 99
    )
    before = _memory(target)
    talks = [Talk(target, text, shape, f"memory-{number}", 1) for number in range(sessions)]
    await in_groups([_whole(talk, keep=True) for talk in talks], at_once)
    turns, grown = sessions * TURNS, _memory(target) - before
    bound = 20_000 + 32 * shape.new_tokens
    return {
        "turns": turns,
        "new_tokens_per_turn": shape.new_tokens,
        "bytes_per_turn": round(grown / turns),
        "bound_bytes_per_turn": bound,
    }


async def over_calls(target: Target, text: Text, shape: Shape, calls: int, at_once: int) -> list[dict[str, float]]:
    """Memory along many calls of sessions that end: a row for each tenth of the way."""
    rows: list[dict[str, float]] = []
    done = 0

    async def keep_talking(number: int) -> None:
        nonlocal done
        while done < calls:
            await _whole(Talk(target, text, shape, f"flat-{number}-{done}", 1), keep=False)
            done += TURNS
            if done >= len(rows) * calls / 10:
                rows.append({"calls": done, "mib": round(_memory(target) / 2**20, 1)})

    await asyncio.gather(*(keep_talking(number) for number in range(at_once)))
    return rows


async def _whole(talk: Talk, keep: bool) -> None:
    while not talk.is_over:
        status = await talk.call()
        if status != 200:
            raise RuntimeError(f"{talk.session} got {status}")
    if keep:
        talk.close()
    else:
        await talk.end()


def _memory(target: Target) -> int:
    return 0 if target.pid is None else Usage.of(target.pid).memory_bytes
