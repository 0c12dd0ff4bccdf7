"""Child processes of a local run: started in groups of their own, ended as groups.

A step may start daemons that leave its group (Ray does); `agentic.processes` finds those by the run's id.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

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
