"""Child processes of a step: the trainer and the engine."""

import asyncio


async def end(process: asyncio.subprocess.Process, grace_seconds: float) -> None:
    """End a child that still runs: politely first, since it ends children of its own then."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
