"""`DirectBuilder`: BuildKit's client as a process of this machine, for a BuildKit that can be reached from here."""

import asyncio
from collections.abc import Sequence

from agentic.images.buildctl import (
    PROGRAM,
    BuildFailure,
    BuildOrder,
    Client,
    build_command,
    check_command,
    judge_build,
    judge_check,
)
from agentic.images.errors import BuilderRefusedError, BuilderUnavailableError
from agentic.images.settings import ImageSettings

LAST_BYTES = 8192
"""Of what the client printed: enough for its last words."""
PATIENCE_SECONDS = 30.0


class DirectBuilder:
    """A Builder without a cluster."""

    def __init__(self, settings: ImageSettings, *, ca_file: str | None = None) -> None:
        self._settings = settings
        self._client = Client(settings.buildkit_address or "", ca_file=ca_file)
        self._is_ready = False

    async def prepare(self) -> None:
        """See `Builder.prepare`."""
        if self._is_ready:
            return
        words = await _run(check_command(self._client), PATIENCE_SECONDS)
        if words is not None:
            reason, remedy = judge_check(words, "take images.builder=jobs, whose Jobs show certificates")
            where = f"BuildKit at {self._client.address} does not answer: {reason}"
            if remedy:
                raise BuilderRefusedError(f"{where}: {remedy}")
            raise BuilderUnavailableError(f"{where}: start it, or set images.buildkit_address")
        self._is_ready = True

    async def build(self, order: BuildOrder) -> BuildFailure | None:
        """See `Builder.build`."""
        command = build_command(self._client, order, self._settings)
        words = await _run(command, self._settings.build_timeout_seconds)
        return None if words is None else judge_build(words)


async def _run(command: Sequence[str], seconds: float) -> str | None:
    """None when it ended well, else the end of what it printed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except FileNotFoundError:
        raise BuilderRefusedError(f"there is no {PROGRAM} in PATH: install BuildKit's client") from None
    try:
        async with asyncio.timeout(seconds):
            output = await _last_words(process)
            return None if await process.wait() == 0 else output
    except TimeoutError:
        return f"error: it took longer than its {seconds:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _last_words(process: asyncio.subprocess.Process) -> str:
    if process.stdout is None:
        raise RuntimeError("the client's output is piped")
    kept = b""
    while chunk := await process.stdout.read(LAST_BYTES):
        kept = (kept + chunk)[-LAST_BYTES:]
    return kept.decode(errors="replace")
