"""What runs on the head of the run's Ray cluster: the work of `train` or of `evaluate`, as a Ray job.

    python -m steps.on_head --job runs/<run-id>/jobs/<submission-id>/job.json

The step's pod asks for it and follows it (`agentic.training.following`); this goes on when that pod is gone. It holds
the shared folders while it reads them, does what the step does on one machine, and leaves its progress and its end on
the volume. What it prints goes to Ray's log of the job and, where the head names it, to the container's own output:
reward of each step, model and data as they are loaded, and the trainer's own log.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from steps import failures, machine
from steps.contract import sigterm_raises

if TYPE_CHECKING:
    from agentic.training.head_job import HeadJob, HeadResult, JobFolder

QUIET_SECONDS = 30.0
"""Between two lines about the same step; a new step is told at once."""

_LOGS = {"train": "trainer.log", "evaluate": "engine.log"}
"""What the work's own child process prints to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of the file; 0, or the exit code that its step would have."""
    from agentic.training.head_job import OUTPUT_VARIABLE, HeadJob, JobFolder

    parser = argparse.ArgumentParser(prog="python -m steps.on_head", description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=Path, required=True, metavar="FILE", help="job.json of a run's jobs folder")
    path: Path = parser.parse_args(arguments).job
    job = HeadJob.model_validate_json(path.read_text())
    folder = JobFolder(job.job.run_dir, path.parent.name)
    with sigterm_raises(), _copied(os.environ.get(OUTPUT_VARIABLE)):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        result = _result_of(job, folder)
        folder.write_result(result)
    return result.exit_code


def _result_of(job: "HeadJob", folder: "JobFolder") -> "HeadResult":
    from agentic.training.head_job import HeadResult

    killed_before = machine.memory_kills()
    try:
        return asyncio.run(_work(job, Progress(folder)))
    except SystemExit:
        return HeadResult(exit_code=failures.TERMINATED, line=f"{job.work} was told to end")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the main of a step's work, as in the contract
        failure = failures.classify(error)
        if not failure.expected:
            traceback.print_exception(error, file=sys.stderr)
        line = explained(failure.line, machine.memory_kills() - killed_before)
        sys.stderr.write(f"{job.work}: {line}\n")
        return HeadResult(exit_code=failure.exit_code, line=line)


def explained(line: str, killed: int) -> str:
    """The line, with what only the kernel knows of the cause: whoever lost a child sees a closed connection."""
    if killed <= 0:
        return line
    return f"{line}; memory ran out in the head (killed by the kernel: {killed}): raise cluster.head.memory"


async def _work(job: "HeadJob", progress: "Progress") -> "HeadResult":
    from agentic.training.head_job import HeadResult
    from agentic.training.relay import relayed

    with _held(job, progress):
        async with relayed(job.job.run_dir / "logs" / _LOGS[job.work], sys.stdout.write):
            if job.work == "train":
                from agentic.training.job import train

                trained = await train(job.job, progress, os.environ.get("RAY_ADDRESS"))
                return HeadResult(exit_code=0, line="trained", trained=trained)
            from agentic.training.evaluate import evaluate

            if job.summary is None:
                raise ValueError("a job of evaluate needs to know where training ended")
            evaluated = await evaluate(job.job, job.summary, progress)
            return HeadResult(exit_code=0, line="evaluated", evaluated=evaluated)


@contextmanager
def _held(job: "HeadJob", progress: "Progress") -> Iterator[None]:
    """Data set and model stay as they are, also when nobody follows any more."""
    from agentic.files import locked_folder

    with ExitStack() as held:
        for name, folder in (("data set", job.job.data_dir), ("model", job.job.model_dir)):
            sys.stdout.write(f"loading {name} {folder}\n")
            waits = partial(progress, 0, 1, f"waiting for another run that makes {folder}")
            held.enter_context(locked_folder(folder, waits, exclusive=False))
        yield


class Progress:
    """Reports of the work: each change to the volume, each step and now and then a line to whoever reads the log."""

    def __init__(self, folder: "JobFolder") -> None:
        self._folder = folder
        self._last: tuple[int, int, str] | None = None
        self._told_step: int | None = None
        self._told_at = 0.0

    def __call__(self, done: int, total: int, message: str) -> None:
        from agentic.training.head_job import HeadProgress

        report = (done, total, message)
        if report == self._last:
            return
        self._last = report
        self._folder.write_progress(HeadProgress(*report))
        now = time.monotonic()
        if done != self._told_step or now - self._told_at >= QUIET_SECONDS:
            self._told_step, self._told_at = done, now
            sys.stdout.write(f"{message}\n")
            sys.stdout.flush()


class _Copy:
    """A stream, and a second one that may break: the work matters more than who watches it."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream = stream
        self._copy: TextIO | None = copy

    def write(self, text: str) -> int:
        if self._copy is not None:
            try:
                self._copy.write(text)
                self._copy.flush()
            except OSError:
                self._copy = None
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def _copied(path: str | None) -> Iterator[None]:
    """Print to that file as well, if there is one and it may be written."""
    with ExitStack() as opened:
        try:
            copy = opened.enter_context(Path(path).open("a")) if path else None
        except OSError as error:
            sys.stderr.write(f"{path} cannot be written ({error.strerror}): the log is in Ray's job log only\n")
            copy = None
        before = sys.stdout, sys.stderr
        if copy is not None:
            sys.stdout, sys.stderr = (cast(TextIO, _Copy(stream, copy)) for stream in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise SystemExit(main())
