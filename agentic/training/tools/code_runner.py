"""Runs Python code in sandboxes, for the service behind `/run_code`.

Every run gets a sandbox of its own, without a network, and leaves nothing behind: neither a file nor a process of one
run can be met by another. Limits on time, memory, processes, CPU and output are the provider's. At most `concurrency`
runs go on at once; of the others at most `waiting` wait.

What happens to the code (an exception, a limit, a signal) is an answer. What happens to the sandbox is an error.
"""

import asyncio
import importlib.util
import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agentic.errors import PermanentError, TransientError
from agentic.sandbox.base import ExecResult, ImageReference, SandboxImage, SandboxProvider, SandboxSpec
from agentic.sandbox.errors import SandboxExhaustedError
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import BubblewrapSandbox, KubeSandbox, SandboxSettings
from agentic.training.tools.settings import CodeSandboxSettings

LIBRARIES = "/opt/libraries"
"""Where a sandbox sees the packages of `libraries`."""
KILLED_EXIT_CODE = 137


class ServiceBusyError(TransientError):
    """Too many runs wait already."""


class RunResult(BaseModel):
    """What became of the process."""

    model_config = ConfigDict(frozen=True)

    status: Literal["Finished", "TimeLimitExceeded", "MemoryLimitExceeded"]
    stdout: str = ""
    stderr: str = ""
    return_code: int
    execution_time: float
    """Seconds."""


class RunAnswer(BaseModel):
    """The service's answer."""

    model_config = ConfigDict(frozen=True)

    status: Literal["Success", "Failed"]
    """`Success`: it ended by itself with exit code 0."""
    message: str = ""
    """What a limit did, in words."""
    run_result: RunResult


class CodeRunner:
    """Runs code in sandboxes of one provider."""

    def __init__(
        self,
        provider: SandboxProvider,
        image: SandboxImage,
        settings: CodeSandboxSettings,
        folders: Mapping[Path, str] | None = None,
        run_id: str = "code",
    ) -> None:
        """`folders`: packages by their place in the sandbox, below `LIBRARIES`. `run_id`: whose sandboxes these are."""
        self.settings = settings
        self._provider = provider
        self._image = image
        self._folders = dict(folders or {})
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._waiting = 0
        self._run_id = run_id
        self._numbers = itertools.count()

    async def run(self, code: str, seconds: float | None = None) -> RunAnswer:
        """Run it to its end or to a limit; `seconds` may only lower the settings'.

        Raises:
            ServiceBusyError: too many wait.
            SandboxStartError, SandboxLostError: the sandbox failed, which says nothing about the code.
        """
        if self._gate.locked() and self._waiting >= self.settings.waiting:
            raise ServiceBusyError(f"{self._waiting} runs wait already: come again, or raise train.tools.code.waiting")
        self._waiting += 1
        try:
            await self._gate.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._run(code, min(seconds or self.settings.run_seconds, self.settings.run_seconds))
        finally:
            self._gate.release()

    async def _run(self, code: str, seconds: float) -> RunAnswer:
        spec = SandboxSpec(
            run_id=self._run_id,
            sandbox_id=f"code-{os.getpid()}-{next(self._numbers)}",
            image=self._image,
            env={"PYTHONPATH": LIBRARIES, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            workdir="/tmp",
            folders=self._folders,
        )
        sandbox = await self._provider.acquire(spec)
        started = time.monotonic()
        try:
            result = await sandbox.exec(["python3", "-"], stdin=code.encode(), timeout_seconds=seconds)
        except SandboxExhaustedError as error:
            elapsed = round(time.monotonic() - started, 3)
            run = RunResult(status="MemoryLimitExceeded", return_code=KILLED_EXIT_CODE, execution_time=elapsed)
            return RunAnswer(status="Failed", message=str(error), run_result=run)
        finally:
            await sandbox.release()
        return self._answer(result, seconds, round(time.monotonic() - started, 3))

    def _answer(self, result: ExecResult, seconds: float, elapsed: float) -> RunAnswer:
        notes = []
        if result.timed_out:
            notes.append(f"stopped after {seconds:g} s")
        elif result.exit_code == KILLED_EXIT_CODE:
            notes.append(f"killed, as for using more than {self.settings.memory_mb} MiB of memory")
        if result.truncated:
            notes.append(f"output beyond {self.settings.output_limit_bytes} bytes was left out")
        run = RunResult(
            status="TimeLimitExceeded" if result.timed_out else "Finished",
            stdout=result.text,
            stderr=result.error_text,
            return_code=result.exit_code,
            execution_time=elapsed,
        )
        return RunAnswer(
            status="Failed" if result.timed_out or result.exit_code else "Success",
            message="; ".join(notes),
            run_result=run,
        )

    async def close(self) -> None:
        """End what still runs."""
        await self._provider.close()


def open_runner(
    settings: CodeSandboxSettings, sandbox: SandboxSettings, store_dir: Path, run_id: str = "code"
) -> CodeRunner:
    """A runner whose sandboxes come as these settings say. Call it within the event loop that will use it."""
    from agentic.sandbox.providers import make_provider, open_store

    limited = limited_sandbox(settings, sandbox)
    store = open_store(store_dir, limited)
    folders = {} if isinstance(limited, KubeSandbox) else find_libraries(settings.libraries)
    return CodeRunner(make_provider(limited, store), _image(limited, store), settings, folders, run_id)


def limited_sandbox(settings: CodeSandboxSettings, sandbox: SandboxSettings) -> SandboxSettings:
    """The same provider with the limits of code; its isolation stays."""
    changes: dict[str, object] = {
        "memory_mb": settings.memory_mb,
        "max_processes": settings.max_processes,
        "cpus": settings.cpus,
        "command_timeout_seconds": settings.run_seconds,
        "output_limit_bytes": settings.output_limit_bytes,
        "start_concurrency": settings.concurrency,
    }
    if isinstance(sandbox, BubblewrapSandbox):
        changes["scratch_mb"] = max(1, settings.memory_mb // 4)
    return sandbox.model_copy(update=changes)


def _image(sandbox: SandboxSettings, store: RootfsStore) -> SandboxImage:
    return ImageReference(sandbox.base_image) if isinstance(sandbox, KubeSandbox) else store.ensure_base()


def find_libraries(names: tuple[str, ...]) -> dict[Path, str]:
    """Folders of packages of this environment, each with its place in a sandbox.

    Raises:
        PermanentError: one is not installed, or is no package.
    """
    found = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise PermanentError(
                f"train.tools.code.libraries names {name}, which is no package of this environment: install it, or "
                "take it out"
            )
        found[Path(spec.submodule_search_locations[0])] = f"{LIBRARIES}/{name}"
    return found
