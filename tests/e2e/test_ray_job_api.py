"""The client of Ray's job API against a real head of this machine, as the double of the unit tests says that it is."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from agentic import processes
from agentic.training.environment import head_environment
from agentic.training.errors import HeadRefusedError, HeadUnreachableError
from agentic.training.ray_jobs import JobStatus, RayJob, RayJobClient, Submission

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOKEN = "0123456789abcdef" * 4


class Head(NamedTuple):
    address: str
    run_id: str


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """Started by the command and in the environment that the pods of a RayCluster have."""
    workspace = tmp_path_factory.mktemp("w")
    run_id, token = f"jobs-{uuid4().hex[:8]}", workspace / "ray.token"
    token.write_text(TOKEN)
    port, dashboard, agent, client = free_ports(4)
    environment = head_environment(run_id, workspace, token, device="cpu", threads=1)
    environment["RAY_JOB_STOP_WAIT_TIME_S"] = "20"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={port}", "--num-cpus=2"]
    command += [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    command += [f"--ray-client-server-port={client}", f"--temp-dir=/tmp/ray-{run_id}"]
    command += ["--object-store-memory=100000000", "--disable-usage-stats"]
    try:
        subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, timeout=200)
        yield Head(f"http://127.0.0.1:{dashboard}", run_id)
    finally:
        processes.end(run_id, workspace)
        shutil.rmtree(f"/tmp/ray-{run_id}", ignore_errors=True)


async def served(jobs: RayJobClient) -> str:
    """Ray's version, once the dashboard's part for jobs is up."""
    async with asyncio.timeout(120):
        while True:
            try:
                version = await jobs.version()
                await jobs.jobs()
            except HeadUnreachableError:
                await asyncio.sleep(0.5)
            else:
                return version


async def over(jobs: RayJobClient, name: str) -> RayJob:
    async with asyncio.timeout(120):
        while (found := await jobs.find(name)) is None or not found.status.is_over:
            await asyncio.sleep(0.3)
    return found


async def test_jobs_run_print_fail_and_stop_as_the_double_says(head: Head) -> None:
    async with RayJobClient(head.address, TOKEN) as jobs:
        assert await served(jobs) == "2.60.0"
        assert await jobs.find("nobody") is None
        assert not await jobs.stop("nobody")
        prints = Submission("prints", "echo one; sleep 1; echo two", {"agentic-rl/run": head.run_id})
        await jobs.submit(prints)
        await jobs.submit(prints)
        log = "".join([text async for text in jobs.log("prints")])
        assert [line for line in log.splitlines() if line in ("one", "two")] == ["one", "two"], "beside Ray's own lines"
        ended = await over(jobs, "prints")
        assert (ended.status, ended.driver_exit_code) == (JobStatus.SUCCEEDED, 0)
        assert (ended.metadata or {})["agentic-rl/run"] == head.run_id

        await jobs.submit(Submission("fails", "echo why >&2; exit 78", {}))
        ended = await over(jobs, "fails")
        assert (ended.status, ended.driver_exit_code) == (JobStatus.FAILED, 78)
        assert "why" in str(ended.message)
        assert {one.submission_id for one in await jobs.jobs()} >= {"prints", "fails"}


async def test_a_job_that_is_stopped_ends_in_good_order(head: Head, tmp_path: Path) -> None:
    """It has longer than Ray's own three seconds."""
    mark = tmp_path / "ended"
    script = (
        "import signal, sys, time, pathlib\n"
        "def end(*_):\n"
        "    time.sleep(5)\n"
        f"    pathlib.Path({str(mark)!r}).touch()\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(100)\n"
    )
    program = tmp_path / "waits.py"
    program.write_text(script)
    async with RayJobClient(head.address, TOKEN) as jobs:
        await served(jobs)
        await jobs.submit(Submission("waits", f"exec {sys.executable} {program}", {}))
        async for text in jobs.log("waits"):
            if "ready" in text:
                break
        assert await jobs.stop("waits")
        assert (await over(jobs, "waits")).status is JobStatus.STOPPED
    assert mark.exists()


async def test_nobody_gets_at_a_head_without_its_token_but_probes(head: Head) -> None:
    import aiohttp

    async with RayJobClient(head.address, TOKEN) as jobs:
        await served(jobs)
    for token in (None, "another"):
        async with RayJobClient(head.address, token) as stranger:
            with pytest.raises(HeadRefusedError):
                await stranger.submit(Submission("theirs", "true", {}))
    async with aiohttp.ClientSession() as kubelet, kubelet.get(f"{head.address}/api/gcs_healthz") as answer:
        assert answer.status == 200
