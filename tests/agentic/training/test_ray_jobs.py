"""The client of Ray's job API against a double that answers as Ray does."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fake_ray_head import FakeRayHead

from agentic.training.errors import HeadRefusedError, HeadUnreachableError
from agentic.training.ray_jobs import JobStatus, RayJobClient, Submission

WORK = Submission("train-r-1", "exec true", {"agentic-rl/run": "r"})


@pytest_asyncio.fixture
async def head() -> AsyncIterator[FakeRayHead]:
    async with FakeRayHead(token="secret") as head:
        yield head


@pytest_asyncio.fixture
async def jobs(head: FakeRayHead) -> AsyncIterator[RayJobClient]:
    async with RayJobClient(head.address, "secret") as client:
        yield client


async def test_a_job_is_submitted_found_listed_and_stopped(head: FakeRayHead, jobs: RayJobClient) -> None:
    assert await jobs.version() == "2.60.0"
    assert await jobs.find(WORK.submission_id) is None
    await jobs.submit(WORK)
    found = await jobs.find(WORK.submission_id)
    assert found is not None
    assert found.status is JobStatus.RUNNING
    assert found.metadata == {"agentic-rl/run": "r"}
    assert [one.submission_id for one in await jobs.jobs()] == [WORK.submission_id, None]
    assert await jobs.stop(WORK.submission_id)
    assert not await jobs.stop(WORK.submission_id), "it has ended"
    assert not await jobs.stop("unknown")


async def test_a_submission_that_arrived_although_its_answer_was_lost_counts(
    head: FakeRayHead, jobs: RayJobClient
) -> None:
    head.lost_answers = 1
    await jobs.submit(WORK)
    await jobs.submit(WORK)
    assert head.submitted == [WORK.submission_id]


async def test_a_wrong_token_is_refused_and_a_silent_head_is_unreachable(head: FakeRayHead, jobs: RayJobClient) -> None:
    async with RayJobClient(head.address, "another") as stranger:
        with pytest.raises(HeadRefusedError, match="token"):
            await stranger.jobs()
    async with RayJobClient(head.address, None) as nobody:
        with pytest.raises(HeadRefusedError, match="401"):
            await nobody.submit(WORK)
    head.is_down = True
    with pytest.raises(HeadUnreachableError, match="503"):
        await jobs.find(WORK.submission_id)
    async with RayJobClient("http://127.0.0.1:9", "secret") as nowhere:
        with pytest.raises(HeadUnreachableError, match="does not answer"):
            await nowhere.version()


async def test_a_log_is_read_from_its_beginning_until_the_job_ends(head: FakeRayHead, jobs: RayJobClient) -> None:
    await jobs.submit(WORK)
    head.print(WORK.submission_id, "one\n")

    async def read() -> str:
        return "".join([text async for text in jobs.log(WORK.submission_id)])

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    head.print(WORK.submission_id, "two\n")
    head.end(WORK.submission_id, "SUCCEEDED", 0)
    assert await reading == "one\ntwo\n"
    with pytest.raises(HeadUnreachableError, match="cannot be read"):
        await anext(jobs.log("unknown"))
