"""Follows a job on the head of a Ray cluster from a step that may come and go.

`run_on_head` finds the work going on, or submits it; reports its progress and prints its log; and turns its end into
outputs or into one of two errors. Promises:
- one job of a run at a time: what runs with other inputs is stopped first, what runs with the same is picked up;
- a follower that is killed leaves the job alone, the next one takes over; one that is told to end asks `gives_up`
  whether the job ends as well;
- a head that does not answer is waited for as long as its cluster says that it lives; one that is gone, or that knows
  the job no more, ends the wait at once and by name;
- a job's own words decide how it ended; only for one that left none is it judged by its exit code.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from agentic.errors import AgenticError, PermanentError, TransientError
from agentic.training.errors import HeadLostError, HeadUnreachableError, TrainingError, TrainingInterrupted
from agentic.training.head_job import (
    RUN_KEY,
    HeadJob,
    HeadProgress,
    HeadResult,
    JobFolder,
    attempts,
    in_order,
    next_id,
)
from agentic.training.ray_jobs import JobStatus, RayJob, RayJobClient, Submission

OnProgress = Callable[[int, int, str], None]


class Pace(NamedTuple):
    """How often is looked, and how long is waited."""

    poll_seconds: float = 2.0
    """Between two looks at a job."""
    unreachable_seconds: float = 900.0
    """How long a head may be silent while its pod is said to live: a busy one, or a network that heals."""
    stop_seconds: float = 100.0
    """How long a job may take to end when it is told to; longer than Ray gives it before it kills it."""
    last_words_seconds: float = 60.0
    """How long the end of a job may precede what it wrote: network volumes show files of other machines late."""


ORDINARY = Pace()
_LOG_DRAIN_SECONDS = 5.0
SPOKEN_EXITS = frozenset([0, 75, 78, 130, 143])
"""Of a job that wrote its result before."""
_PERMANENT_EXITS = frozenset([1, 2, 78, 126, 127])
"""Of a job without last words: a program that is not there, or that does not start."""


class Head(Protocol):
    """The Ray head as its cluster sees it."""

    @property
    def address(self) -> str:
        """Of its dashboard, such as `http://10.0.0.7:8265`."""
        ...

    @property
    def token(self) -> str | None:
        """Of the run."""
        ...

    def loss(self) -> str | None:
        """Why this very head is gone, once it is; a head that replaces it is another one."""
        ...


async def run_on_head(
    head: Head,
    job: HeadJob,
    on_progress: OnProgress,
    print_log: Callable[[str], None],
    gives_up: Callable[[], Awaitable[bool]],
    *,
    pace: Pace = ORDINARY,
) -> HeadResult:
    """Do a job's work on the head, or pick it up, until it has ended well.

    Args:
        gives_up: asked when the follower is told to end; whether the job ends with it.

    Raises:
        PermanentError: it failed in a way that another try would meet again.
        TransientError: it was lost, stopped or interrupted; trying again resumes.
    """
    async with RayJobClient(head.address, head.token) as jobs:
        follower = Follower(head, jobs, job.job.run_dir, on_progress, pace)
        try:
            submission_id = await follower.start(job)
            async with follower.printing(submission_id, print_log):
                ended = await follower.until_over(submission_id)
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            if follower.current is not None and await gives_up():
                await follower.stop(follower.current)
            raise
        return settle(ended, await follower.last_words(ended, submission_id), submission_id)


class Follower:
    """One step's view of the jobs of its run on one head."""

    def __init__(self, head: Head, jobs: RayJobClient, run_dir: Path, on_progress: OnProgress, pace: Pace) -> None:
        self._head = head
        self._pace = pace
        self._jobs = jobs
        self._run_dir = run_dir
        self._on_progress = on_progress
        self._progress = HeadProgress(0, 1, "")
        self.current: str | None = None
        """What is followed, from before it is submitted on."""

    async def start(self, job: HeadJob) -> str:
        """The submission id of this very work: found going on, or submitted."""
        known = await self._patiently(self._jobs.jobs)
        own = [one for one in known if one.submission_id and (one.metadata or {}).get(RUN_KEY) == job.job.run_id]
        living = [str(one.submission_id) for one in own if not one.status.is_over]
        same = in_order(job.prefix, living)
        # The first of several holds the run's folder: another one's submission had arrived after its step was gone.
        for other in (name for name in living if name not in same[:1]):
            why = "does the same a second time" if other in same else "works on this run with other inputs"
            self._say(f"stopping {other}, which {why}")
            if not await self.stop(other):
                raise TrainingInterrupted(f"{other} does not end, and two must not work on one run: try again")
        if same:
            self._say(f"picking up {same[0]}, which is still going")
            self.current = same[0]
            return same[0]
        used = [*(str(one.submission_id) for one in own), *attempts(self._run_dir)]
        return await self._submit(job, next_id(job.prefix, used))

    async def _submit(self, job: HeadJob, submission_id: str) -> str:
        folder = JobFolder(self._run_dir, submission_id)
        folder.write_job(job)
        self.current = submission_id
        submission = Submission(submission_id, folder.command, job.metadata)
        await self._patiently(lambda: self._jobs.submit(submission))
        self._say(f"submitted {submission_id} to {self._head.address}")
        return submission_id

    async def until_over(self, submission_id: str) -> RayJob:
        """The job as it ended; reports how far it is meanwhile."""
        folder = JobFolder(self._run_dir, submission_id)
        while True:
            found = await self._patiently(lambda: self._jobs.find(submission_id))
            if found is None:
                raise HeadLostError(
                    f"Ray's head knows no job {submission_id} any more, so it was started anew: trying again resumes"
                )
            self._report(folder.read_progress())
            if found.status.is_over:
                return found
            await asyncio.sleep(self._pace.poll_seconds)

    async def stop(self, submission_id: str) -> bool:
        """Tell it to end and wait until it has; False if it has not, or nobody can tell."""
        try:
            async with asyncio.timeout(self._pace.stop_seconds):
                while not await self._has_ended(submission_id):
                    await asyncio.sleep(self._pace.poll_seconds / 4)
        except TimeoutError:
            return False
        return True

    async def _has_ended(self, submission_id: str) -> bool:
        """After it was told to; saying so again does nothing."""
        try:
            await self._jobs.stop(submission_id)
            found = await self._jobs.find(submission_id)
        except HeadUnreachableError:
            return False
        return found is None or found.status.is_over

    async def last_words(self, ended: RayJob, submission_id: str) -> HeadResult | None:
        """What the job wrote about its end; waited for where its exit code says that it wrote something."""
        folder, loop = JobFolder(self._run_dir, submission_id), asyncio.get_running_loop()
        has_spoken = ended.driver_exit_code in SPOKEN_EXITS
        deadline = loop.time() + (self._pace.last_words_seconds if has_spoken else 0.0)
        while (found := folder.read_result()) is None and loop.time() < deadline:
            await asyncio.sleep(self._pace.poll_seconds / 4)
        return found

    @contextlib.asynccontextmanager
    async def printing(self, submission_id: str, print_log: Callable[[str], None]) -> AsyncIterator[None]:
        """Print the job's log as it grows; each part once, however often the connection breaks."""
        task = asyncio.create_task(self._print(submission_id, print_log), name=f"log of {submission_id}")
        try:
            yield
            await asyncio.wait({task}, timeout=_LOG_DRAIN_SECONDS)
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (problem := task.exception()) is not None:
                self._say(f"the log of {submission_id} was shown in part only: {problem}")

    async def _print(self, submission_id: str, print_log: Callable[[str], None]) -> None:
        printed = 0
        while True:
            with contextlib.suppress(HeadUnreachableError):
                seen = 0
                async for text in self._jobs.log(submission_id):
                    fresh = text[max(0, printed - seen) :]
                    seen += len(text)
                    printed = max(printed, seen)
                    if fresh:
                        print_log(fresh)
                found = await self._jobs.find(submission_id)
                if found is None or found.status.is_over:
                    return
            await asyncio.sleep(self._pace.poll_seconds)

    async def _patiently[T](self, call: Callable[[], Awaitable[T]]) -> T:
        """Until the head answers, is gone, or has been silent for too long."""
        loop = asyncio.get_running_loop()
        deadline, is_told = loop.time() + self._pace.unreachable_seconds, False
        while True:
            loss = self._head.loss()
            if loss is not None:
                raise HeadLostError(loss)
            try:
                return await call()
            except HeadUnreachableError as error:
                if loop.time() >= deadline:
                    raise
                if not is_told:
                    self._say(f"waiting for Ray's head: {error}")
                    is_told = True
            await asyncio.sleep(self._pace.poll_seconds)

    def _say(self, line: str) -> None:
        self._on_progress(self._progress.done, self._progress.total, line)

    def _report(self, progress: HeadProgress | None) -> None:
        if progress is not None and progress != self._progress:
            self._progress = progress
            self._on_progress(*progress)


def settle(ended: RayJob, said: HeadResult | None, submission_id: str) -> HeadResult:
    """What a job's end means for its step. Pure.

    Raises:
        TrainingInterrupted: it was stopped, killed or lost, or says that trying again may help.
        TrainingError: it says that it cannot, or never started.
    """
    if ended.status is JobStatus.STOPPED:
        raise TrainingInterrupted(f"the Ray job {submission_id} was stopped: trying again resumes from a checkpoint")
    if said is not None and said.exit_code == 0:
        return said
    if said is not None:
        raise _error_of(said.exit_code)(said.line)
    if ended.status is JobStatus.SUCCEEDED:
        raise TrainingInterrupted(
            f"the Ray job {submission_id} ended well but its result is not on the volume: is the claim of the runs "
            "mounted read-write-many in the head and in the steps?"
        )
    raise _error_of(ended.driver_exit_code)(f"the Ray job {submission_id} left no last words: {describe(ended)}")


def describe(ended: RayJob) -> str:
    """Exit code and the last line of what Ray says about a failed job."""
    lines = [line for line in (ended.message or "").splitlines() if line.strip()]
    last = re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip()[:300] if lines else "no message"
    code = "" if ended.driver_exit_code is None else f"exit code {ended.driver_exit_code}, "
    return f"{code}{last}"


def _error_of(exit_code: int | None) -> type[AgenticError]:
    """A job that was killed, by a signal or with its supervisor, may succeed when it is tried again."""
    kind: type[PermanentError | TransientError]
    kind = TrainingError if exit_code in _PERMANENT_EXITS else TrainingInterrupted
    return kind
