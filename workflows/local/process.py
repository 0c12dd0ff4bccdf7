"""Child processes of a local run: started in groups of their own, found again by run, ended without leftovers.

A step may start daemons that leave its process group (Ray does). They inherit `AGENTIC_RUN_ID`, so a sweep finds them
in `/proc/*/environ`, and their descendants by parent: a process that rewrote its title may have lost its environment.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

RUN_VARIABLE = "AGENTIC_RUN_ID"
"""Marks every process of a run."""

GRACE_SECONDS = 30.0
"""Between asking a step to end and killing it; the training job gives verl twenty of these to stop its actors."""


async def run_process(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, deadline_seconds: float | None
) -> int:
    """The exit code of the command, whose output is appended to the log; 128 + n when signal n ended it.

    Raises TimeoutError when it ran past its deadline and OSError when it cannot be started. However this ends, no
    process of the group is left.
    """
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=env,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(deadline_seconds):
            code = await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        await _end_group(process)
        raise
    return 128 - code if code < 0 else code


async def _end_group(process: asyncio.subprocess.Process) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    waiter = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([waiter], timeout=GRACE_SECONDS)
    finally:
        _signal_group(process.pid, signal.SIGKILL)
    await waiter


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def _parent_and_state(process: Path) -> tuple[int, str]:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, "Z"
    return int(fields[1]), fields[0]


def processes_of(run_id: str) -> Iterator[int]:
    """Living processes that carry the run's id, and their descendants; never this process."""
    mark = f"\0{RUN_VARIABLE}={run_id}\0".encode()
    found: set[int] = set()
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        parent, state = _parent_and_state(process)
        if state in "ZX":
            continue
        parents[int(process.name)] = parent
        if mark in b"\0" + _environment(process) + b"\0":
            found.add(int(process.name))
    for pid in parents:
        lineage, seen = pid, set[int]()
        while lineage in parents and lineage not in seen:
            seen.add(lineage)
            if lineage in found:
                yield pid
                break
            lineage = parents[lineage]


async def sweep(run_id: str, grace_seconds: float = GRACE_SECONDS) -> int:
    """End every process of the run; how many there were. Safe to repeat."""
    ended: set[int] = set()
    deadline = time.monotonic() + grace_seconds
    while remaining := list(processes_of(run_id)):
        kill = time.monotonic() >= deadline
        for pid in remaining:
            if kill or pid not in ended:
                _signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
                ended.add(pid)
        await asyncio.sleep(0.1)
    return len(ended)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
