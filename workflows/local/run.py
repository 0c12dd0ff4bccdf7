"""One local run from start to end: one at a time per run id, interruptible, with nothing left running.

Ctrl-C or SIGTERM ends the steps, runs the exit handler, and returns 130; a second one skips the exit handler. Whatever
happened, every process that carries the run's id is ended before this returns.
"""

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from agentic import processes
from steps import failures
from workflows.display import Board, ProgressFiles, Screen
from workflows.errors import RunBusyError, WorkspaceError
from workflows.local.document import Document, read_document
from workflows.local.executor import ProcessExecutor
from workflows.local.process import GRACE_SECONDS
from workflows.local.scheduler import Outcome, Scheduler, is_worth_retrying

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM."""

LOCK = "local.lock"
"""In the run's folder: held while a process executes the run, whose number it has."""


def run_locally(compiled: Mapping[str, Any], run_id: str, workspace: Path, code_dir: Path, console: Console) -> int:
    """Interpret the Workflow to its end; the exit code (0, 75, 78 or 130).

    Raises:
        DocumentError: the document holds something that is not interpreted; nothing was started.
        RunBusyError: the run is being executed by another process.
        WorkspaceError: the workspace cannot be written.
    """
    document = read_document(compiled)
    run_dir = _make_run_dir(workspace, run_id)
    with _exclusive(run_dir, run_id):
        return asyncio.run(_execute(document, run_id, ProcessExecutor(run_id, run_dir, workspace, code_dir), console))


def _make_run_dir(workspace: Path, run_id: str) -> Path:
    run_dir = workspace / "runs" / run_id
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if failures.classify(error).exit_code == failures.TRANSIENT:
            raise
        raise WorkspaceError(
            f"workspace {workspace} cannot be written ({error.strerror}): set AGENTIC_WORKSPACE to a folder that can"
        ) from error
    return run_dir


def holder(run_dir: Path) -> int | None:
    """The process that executes the run now. Looks without taking the lock: a start meanwhile would find it taken."""
    lock = run_dir / LOCK
    try:
        number = int(lock.read_text())
        held = [os.path.realpath(link) for link in Path(f"/proc/{number}/fd").iterdir()]
    except (OSError, ValueError):
        return None
    return number if str(lock.resolve()) in held else None


@contextmanager
def _exclusive(run_dir: Path, run_id: str) -> Iterator[None]:
    with (run_dir / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip()
            raise RunBusyError(
                f"run {run_id} is being executed by process {holder}: wait for it, or stop it with kill -INT {holder}"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


async def _execute(document: Document, run_id: str, executor: ProcessExecutor, console: Console) -> int:
    await asyncio.to_thread(processes.end, run_id, executor.workspace, grace_seconds=GRACE_SECONDS)
    screen = Screen(Board(ProgressFiles(executor.run_dir)), console)
    refreshing = asyncio.create_task(screen.refresh())
    running = asyncio.create_task(Scheduler(document, executor, screen.observe).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return _exit_code(document, await running)
    except asyncio.CancelledError:
        return INTERRUPTED
    finally:
        refreshing.cancel()
        with suppress(asyncio.CancelledError):
            await refreshing
        screen.close()
        await asyncio.to_thread(processes.end, run_id, executor.workspace, grace_seconds=GRACE_SECONDS)


def _exit_code(document: Document, outcome: Outcome) -> int:
    """75 when going on with the run may help, 78 when it cannot.

    An error is of the document or of what a step wrote, and repeats itself. A failure without an exit code is a passed
    deadline, and the next try goes on from what is done, or a fan-out, whose items speak for themselves.
    """
    if outcome.interrupted:
        return INTERRUPTED
    if outcome.status == "Succeeded":
        return 0
    ended = [node for node in outcome.nodes if node.phase == "Failed" and node.exit_code is not None]
    retries = {name: template.retry_strategy for name, template in document.templates.items()}
    permanent = [node for node in ended if not is_worth_retrying(retries[node.template], node)]
    permanent += [node for node in outcome.nodes if node.phase == "Errored"]
    return failures.PERMANENT if permanent else failures.TRANSIENT
