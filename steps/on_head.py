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

from pydantic import ValidationError

from agentic.errors import PermanentError, TransientError
from steps import failures, machine
from steps.contract import sigterm_raises

if TYPE_CHECKING:
    from agentic.training.head_job import HeadJob, HeadResult, JobFolder

QUIET_SECONDS = 30.0
"""Between two lines about the same step; a new step is told at once."""

SHOWN_SECONDS = 30.0
"""How long the file of a job may take to be seen: network volumes show files of other machines late."""

POLL_SECONDS = 0.5

_LOGS = {"train": "trainer.log", "evaluate": "engine.log"}
"""What the work's own child process prints to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the job of the file; 0, or the exit code that its step would have."""
    from agentic.training.head_job import OUTPUT_VARIABLE, JobFolder

    parser = argparse.ArgumentParser(prog="python -m steps.on_head", description=__doc__.splitlines()[0])
    parser.add_argument("--job", type=Path, required=True, metavar="FILE", help="job.json of a run's jobs folder")
    parser.add_argument(
        "--wait", type=float, default=SHOWN_SECONDS, metavar="SECONDS", help="how long the file may take to be seen"
    )
    given = parser.parse_args(arguments)
    folder = JobFolder(given.job.absolute().parents[2], given.job.absolute().parent.name)
    with sigterm_raises(), _copied(os.environ.get(OUTPUT_VARIABLE)):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        return _leave(folder, _result_of(folder, given.wait))


def _result_of(folder: "JobFolder", wait_seconds: float) -> "HeadResult":
    from agentic.training.head_job import HeadResult

    killed_before, work = machine.memory_kills(), "job"
    try:
        job = _awaited(folder, wait_seconds)
        work = job.work
        return asyncio.run(_work(job, Progress(folder)))
    except SystemExit:
        return HeadResult(exit_code=failures.TERMINATED, line=f"{work} was told to end")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the main of a step's work, as in the contract
        failure = failures.classify(error)
        if not failure.expected:
            traceback.print_exception(error, file=sys.stderr)
        line = explained(failure.line, machine.memory_kills() - killed_before)
        sys.stderr.write(f"{work}: {line}\n")
        return HeadResult(exit_code=failure.exit_code, line=line)


def _awaited(folder: "JobFolder", wait_seconds: float) -> "HeadJob":
    """What the step's pod has written a moment ago, perhaps on another machine."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return folder.read_job()
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":
                raise PermanentError(
                    f"{folder.job_file} is of another version ({failures.describe_validation(error)}): "
                    "cluster.steps_image and cluster.trainer_image have to be of one release"
                ) from error
            problem: Exception = error
        except OSError as error:
            problem = error
        if time.monotonic() >= deadline:
            raise TransientError(
                f"{folder.job_file} cannot be read on the head after {wait_seconds:g} s ({problem}): is the claim of "
                "the runs mounted read-write-many in the head and in the steps?"
            ) from problem
        time.sleep(POLL_SECONDS)


def _leave(folder: "JobFolder", result: "HeadResult") -> int:
    """Write how it ended; returns the exit code, by which a follower goes when the volume takes nothing."""
    try:
        folder.write_result(result)
    except OSError as error:
        sys.stderr.write(f"{result.line}; this cannot be written to the volume: {error.strerror}\n")
        return result.exit_code or failures.TRANSIENT
    return result.exit_code


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
    """The run is this job's alone, and data set and model stay as they are, also when nobody follows any more."""
    from agentic.files import locked_folder

    with ExitStack() as held:
        others = partial(progress, 0, 1, "waiting for the end of another job of this run")
        held.enter_context(locked_folder(job.job.run_dir / "jobs", others, exclusive=True))
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
        self._is_writable = True

    def __call__(self, done: int, total: int, message: str) -> None:
        from agentic.training.head_job import HeadProgress

        report = (done, total, message)
        if report == self._last:
            return
        self._last = report
        try:
            self._folder.write_progress(HeadProgress(*report))
            self._is_writable = True
        except OSError as error:
            # The work is worth more than a report of it; a volume that stays full it will meet itself.
            if self._is_writable:
                sys.stderr.write(f"progress cannot be written to the volume: {error.strerror}\n")
            self._is_writable = False
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
