"""A step that follows its job on a head: it may come late, go early, lose the way, or be told to end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_ray_head import FakeJob, FakeRayHead

from agentic.rollout.settings import RolloutSettings
from agentic.sandbox.settings import BubblewrapSandbox
from agentic.training.errors import HeadLostError, HeadUnreachableError, TrainingError, TrainingInterrupted
from agentic.training.following import Pace, run_on_head, settle
from agentic.training.head_job import HeadJob, HeadProgress, HeadResult, JobFolder, next_id
from agentic.training.jobs import TrainJob, TrainSummary
from agentic.training.ray_jobs import JobStatus, RayJob
from agentic.training.settings import RaySettings, TrainSettings

QUICK = Pace(poll_seconds=0.02)
TRAINED = TrainSummary(steps=4, best_step=2, best_rate=0.5, first_rate=0.25, checkpoint="checkpoints/x")


def job_in(folder: Path, **train: Any) -> HeadJob:
    job = TrainJob(
        run_id="r",
        run_dir=folder / "runs" / "r",
        model_dir=folder / "models" / "tiny",
        data_dir=folder / "datasets" / "repair",
        store_dir=folder / "images",
        train=TrainSettings(**train),
        ray=RaySettings(),
        rollout=RolloutSettings(),
        sandbox=BubblewrapSandbox(),
    )
    return HeadJob(work="train", job=job)


@dataclass
class Step:
    """A step's side: the head as its cluster shows it, and what is heard of the job."""

    double: FakeRayHead
    job: HeadJob
    lost: str | None = None
    gives_up: bool = True
    heard: list[tuple[int, int, str]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    pace: Pace = QUICK

    @property
    def address(self) -> str:
        return self.double.address

    @property
    def token(self) -> str | None:
        return self.double.token

    def loss(self) -> str | None:
        return self.lost

    def start(self, job: HeadJob | None = None) -> "asyncio.Task[HeadResult]":
        async def gives_up() -> bool:
            return self.gives_up

        def hear(done: int, total: int, message: str) -> None:
            self.heard.append((done, total, message))

        work = run_on_head(self, job or self.job, hear, self.log.append, gives_up, pace=self.pace)
        return asyncio.create_task(work)

    @property
    def folder(self) -> JobFolder:
        return JobFolder(self.job.job.run_dir, self.double.submitted[-1])

    def finish(self, result: HeadResult) -> None:
        """What the job's program does last."""
        self.folder.write_result(result)
        status = "FAILED" if result.exit_code else "SUCCEEDED"
        self.double.end(self.double.submitted[-1], status, result.exit_code)


@pytest_asyncio.fixture
async def step(tmp_path: Path) -> AsyncIterator[Step]:
    async with FakeRayHead(token="t") as double:
        yield Step(double, job_in(tmp_path))


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


DONE = HeadResult(exit_code=0, line="trained", trained=TRAINED)


async def test_a_job_is_submitted_followed_and_its_outputs_given(step: Step) -> None:
    task = step.start()
    await until(lambda: step.double.submitted)
    name = step.double.submitted[0]
    assert HeadJob.model_validate_json(step.folder.job_file.read_text()) == step.job
    assert str(step.folder.job_file) in step.double.jobs[name].entrypoint
    step.folder.write_progress(HeadProgress(2, 4, "step 2/4 · reward 0.50 (max 1.00)"))
    step.double.print(name, "loading model\n")
    await until(lambda: (2, 4, "step 2/4 · reward 0.50 (max 1.00)") in step.heard and step.log)
    step.double.print(name, "reward\n")
    step.finish(DONE)
    assert (await task).trained == TRAINED
    assert "".join(step.log) == "loading model\nreward\n"


async def test_a_follower_that_was_killed_leaves_the_job_and_the_next_one_picks_it_up(step: Step) -> None:
    step.gives_up = False
    first = step.start()
    await until(lambda: step.double.submitted)
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert step.double.stopped == []
    second = step.start()
    await until(lambda: any("picking up" in message for _, _, message in step.heard))
    step.finish(DONE)
    assert (await second).trained == TRAINED
    assert len(step.double.submitted) == 1


async def test_a_follower_that_is_told_to_end_stops_the_job(step: Step) -> None:
    task = step.start()
    await until(lambda: step.double.submitted)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert step.double.stopped == step.double.submitted


async def test_what_works_on_the_run_with_other_inputs_is_stopped_first(step: Step, tmp_path: Path) -> None:
    step.gives_up = False
    old = step.start(job_in(tmp_path, learning_rate=0.5))
    await until(lambda: step.double.submitted)
    old.cancel()
    await asyncio.gather(old, return_exceptions=True)
    task = step.start()
    await until(lambda: len(step.double.submitted) == 2)
    assert step.double.stopped == step.double.submitted[:1]
    step.finish(DONE)
    await task


async def test_of_several_that_do_the_same_the_first_goes_on_alone(step: Step) -> None:
    """A submission may arrive after its step was gone, and beside the next one's."""
    of_run = {"agentic-rl/run": "r", "agentic-rl/step": "train"}
    for number in (10, 9, 11):
        name = f"{step.job.prefix}{number}"
        step.double.jobs[name] = FakeJob(name, "x", of_run)
        JobFolder(step.job.job.run_dir, name).write_job(step.job)
    task = step.start()
    await until(lambda: any("picking up" in message for _, _, message in step.heard))
    assert sorted(step.double.stopped) == [f"{step.job.prefix}10", f"{step.job.prefix}11"]
    first = f"{step.job.prefix}9"
    JobFolder(step.job.job.run_dir, first).write_result(DONE)
    step.double.end(first, "SUCCEEDED", 0)
    assert (await task).trained == TRAINED


async def test_files_that_cannot_be_read_at_the_moment_are_read_later(step: Step) -> None:
    """Network volumes answer with an error while the other side replaces a file."""
    task = step.start()
    await until(lambda: step.double.submitted)
    unreadable = [step.folder.job_file.with_name(name) for name in ("progress.json", "result.json")]
    for path in unreadable:
        path.mkdir()
    step.double.end(step.double.submitted[-1], "SUCCEEDED", 0)
    await asyncio.sleep(0.1)
    assert not task.done()
    for path in unreadable:
        path.rmdir()
    step.folder.write_result(DONE)
    assert (await task).trained == TRAINED


async def test_a_log_that_cannot_be_shown_is_told_and_ends_nothing(step: Step) -> None:
    def refuse(text: str) -> None:
        raise OSError(28, "No space left on device")

    async def gives_up() -> bool:
        return False

    def hear(done: int, total: int, message: str) -> None:
        step.heard.append((done, total, message))

    task = asyncio.create_task(run_on_head(step, step.job, hear, refuse, gives_up, pace=QUICK))
    await until(lambda: step.double.submitted)
    step.double.print(step.double.submitted[0], "loading model\n")
    await asyncio.sleep(0.1)
    step.finish(DONE)
    assert (await task).trained == TRAINED
    assert "was shown in part only: [Errno 28]" in step.heard[-1][2]


async def test_jobs_of_other_runs_on_the_head_are_left_alone(step: Step) -> None:
    step.double.jobs["theirs"] = FakeJob("theirs", "x", {"agentic-rl/run": "another"})
    task = step.start()
    await until(lambda: step.double.submitted)
    step.finish(DONE)
    await task
    assert step.double.stopped == []


async def test_an_attempt_after_a_failed_one_is_a_new_job(step: Step) -> None:
    task = step.start()
    await until(lambda: step.double.submitted)
    step.finish(HeadResult(exit_code=75, line="the trainer went away: Killed"))
    with pytest.raises(TrainingInterrupted, match="went away"):
        await task
    step.double.forget()  # ids on the volume count as well, since their folders hold the results of then
    task = step.start()
    await until(lambda: len(step.double.submitted) == 2)
    step.finish(DONE)
    assert (await task).trained == TRAINED
    assert [name.rpartition("-")[2] for name in step.double.submitted] == ["1", "2"]


async def test_a_log_is_printed_once_however_often_its_connection_breaks(step: Step) -> None:
    step.double.breaks_logs = True
    task = step.start()
    await until(lambda: step.double.submitted)
    for number in range(5):
        step.double.print(step.double.submitted[0], f"line {number}\n")
        await asyncio.sleep(0.03)
    await until(lambda: "line 4" in "".join(step.log))
    step.finish(DONE)
    await task
    assert "".join(step.log) == "".join(f"line {number}\n" for number in range(5))


async def test_a_silent_head_is_waited_for_while_its_pod_lives(step: Step) -> None:
    task = step.start()
    await until(lambda: step.double.submitted)
    step.double.is_down = True
    await until(lambda: any("waiting for Ray's head" in message for _, _, message in step.heard))
    assert not task.done()
    step.double.is_down = False
    step.finish(DONE)
    assert (await task).trained == TRAINED


async def test_a_head_that_is_gone_ends_the_wait_at_once_and_by_name(step: Step) -> None:
    task = step.start()
    await until(lambda: step.double.submitted)
    step.double.is_down = True
    step.lost = "Ray's head (pod h) has ended: Evicted"
    with pytest.raises(HeadLostError, match="Evicted"):
        await task


async def test_a_head_that_was_started_anew_has_lost_the_job(step: Step) -> None:
    task = step.start()
    await until(lambda: step.double.submitted)
    await asyncio.sleep(0.05)
    step.double.forget()
    with pytest.raises(HeadLostError, match="started anew"):
        await task


ENDS: list[tuple[dict[str, Any], HeadResult | None, type[Exception], str]] = [
    (
        {"status": "FAILED", "driver_exit_code": 78},
        HeadResult(exit_code=78, line="verl stopped"),
        TrainingError,
        "verl",
    ),
    ({"status": "FAILED", "driver_exit_code": 75}, HeadResult(exit_code=75, line="gone"), TrainingInterrupted, "gone"),
    ({"status": "STOPPED"}, HeadResult(exit_code=143, line="told to end"), TrainingInterrupted, "was stopped"),
    ({"status": "STOPPED"}, None, TrainingInterrupted, "was stopped"),
    ({"status": "SUCCEEDED", "driver_exit_code": 0}, None, TrainingInterrupted, "not on the volume"),
    ({"status": "FAILED", "driver_exit_code": -9}, None, TrainingInterrupted, "exit code -9"),
    ({"status": "FAILED", "driver_exit_code": 137}, None, TrainingInterrupted, "exit code 137"),
    ({"status": "FAILED", "message": "Job supervisor actor died"}, None, TrainingInterrupted, "supervisor actor died"),
    (
        {"status": "FAILED", "driver_exit_code": 127, "message": "failed\nsh: 1: exec: python: not found"},
        None,
        TrainingError,
        "python: not found",
    ),
]


@pytest.mark.parametrize(("ended", "said", "error", "words"), ENDS)
def test_an_end_is_permanent_or_not_by_the_jobs_words_else_by_its_exit_code(
    ended: dict[str, Any], said: HeadResult | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        settle(RayJob.model_validate(ended), said, "train-r-1")


def test_a_job_that_ended_well_gives_what_it_said() -> None:
    assert settle(RayJob(status=JobStatus.SUCCEEDED, driver_exit_code=0), DONE, "x") == DONE


def test_ids_of_attempts_count_on_whatever_else_is_there() -> None:
    assert next_id("train-r-ab-", []) == "train-r-ab-1"
    assert next_id("train-r-ab-", ["train-r-ab-2", "train-r-ab-11", "train-r-cd-40", "train-r-ab-x"]) == "train-r-ab-12"


def test_the_same_work_has_the_same_ids_and_other_work_others(tmp_path: Path) -> None:
    assert job_in(tmp_path).prefix == job_in(tmp_path).prefix
    assert job_in(tmp_path).prefix != job_in(tmp_path, steps=7).prefix
    assert job_in(tmp_path).prefix.startswith("train-r-")


async def test_a_head_that_stays_silent_is_given_up_in_the_end(step: Step) -> None:
    step.pace = Pace(poll_seconds=0.02, unreachable_seconds=0.1)
    step.double.is_down = True
    with pytest.raises(HeadUnreachableError, match="503"):
        await step.start()
