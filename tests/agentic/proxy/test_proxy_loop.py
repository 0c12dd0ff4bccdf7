"""The loop of a proxy's own process sets objects aside for the collector's sake, and forgets none for good."""

import subprocess
import sys

PROGRAM = """
import asyncio, gc, weakref
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
    while gone() is not None:
        await asyncio.sleep(0.1)
    print("found in the end")

run(main(), look_at_all_seconds=0.5)
"""


def test_a_cycle_that_was_set_aside_is_found_in_the_end():
    """In a process of its own: what is set aside is the whole process's."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.splitlines() == ["set aside", "found in the end"]
