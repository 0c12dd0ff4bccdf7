"""The loop of a proxy's own process sets objects aside for the collector's sake, and forgets none for good."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, gc, sys, weakref
from agentic.proxy.loop import run

class Node:
    pass

async def main():
    node = Node()
    node.itself = node
    gone = weakref.ref(node)
    await asyncio.sleep(0)  # the collector's task has set the cycle aside
    del node
    for _ in range(5_000):
        [[] for _ in range(10)]
    print("set aside" if gone() is not None else "found at once")
    await asyncio.sleep(1.5)
    print("still there" if gone() is not None else "found by itself")
    grown = bytearray(int(sys.argv[3]))
    while gone() is not None:
        await asyncio.sleep(0.1)
    print("found in the end")

run(main(), look_at_all_seconds=float(sys.argv[1]), look_at_all_bytes=int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("seconds", "limit_bytes", "grown_bytes", "after_a_while"),
    [(0.5, 1 << 40, 0, "found by itself"), (1000, 64 << 20, 256 << 20, "still there")],
    ids=["time", "memory"],
)
def test_a_cycle_that_was_set_aside_is_found_in_the_end(
    seconds: float, limit_bytes: int, grown_bytes: int, after_a_while: str
) -> None:
    """In a process of its own: what is set aside is the whole process's."""
    arguments = [str(seconds), str(limit_bytes), str(grown_bytes)]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.splitlines() == ["set aside", after_a_while, "found in the end"]
