"""What the client of a trial server makes of a network, a disk and a server that do not do what they should."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from trial_server_rig import KEY, filled, serving

from agentic.rollout.grading.report import GradingReport
from agentic.rollout.server import client as client_module
from agentic.rollout.server.client import TrialServerControl
from agentic.rollout.settings import TrialServerSettings

pytestmark = pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")

FIX = "echo '1 + 2' > calc.txt"


@pytest.fixture
async def control():
    """Clients, closed at the end."""
    made = []

    def make(url, answer_seconds=60.0, **changes):
        made.append(TrialServerControl(TrialServerSettings(url=url, **changes), KEY, answer_seconds))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
async def answering():
    """URLs of servers that are not ours: they take every order, and give what they are told for the rest."""
    runners = []

    async def start(events, task=None):
        app = web.Application(client_max_size=1 << 30)

        async def submit(request):
            if task is not None:
                return web.json_response({"code": "unknown_task", "message": "send it"}, status=424)
            return web.json_response({}, status=201)

        app.router.add_put("/v1/trials/{trial}", submit)
        app.router.add_delete("/v1/trials/{trial}", submit)
        app.router.add_get("/v1/trials/{trial}/events", events)
        if task is not None:
            app.router.add_put("/v1/tasks/{task}", task)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_line_that_is_too_long_loses_the_trial_and_raises_nothing(answering, control, trial_for):
    async def events(request):
        return web.Response(body=b"x" * (5 << 20) + b"\n")

    url = await answering(events)
    lost = await control(url, unreachable_seconds=0.5).run(trial_for())
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TrialServerUnavailable")


async def test_a_task_that_could_not_be_read_for_a_moment_is_read_again(tmp_path, trial_for, control, monkeypatch):
    real, failures = client_module.digest_of_task, [OSError(errno.EMFILE, "Too many open files")]

    def digest_of_task(folder):
        if failures:
            raise failures.pop()
        return real(folder)

    monkeypatch.setattr(client_module, "digest_of_task", digest_of_task)
    async with serving(tmp_path / "server") as url:
        trials = control(url)
        assert (await trials.run(trial_for(FIX, trial_id="first"))).facts.exception == "OSError"
        assert (await trials.run(trial_for(FIX, trial_id="second"))).facts.rewards == {"reward": 1.0}


async def test_names_that_an_agent_chose_are_bounded_in_what_goes_with_a_result(tmp_path, trial_for, control):
    """Hundreds of files whose names are long and six times as long in JSON."""
    name = "\x01" * 120
    many = f"import os; [open(f'{{n:03}}-{name}', 'w').close() for n in range(300)]"
    (tmp_path / "make.py").write_text(many.replace("\x01", "\\x01"))
    async with serving(tmp_path / "server") as url:
        result = await control(url).run(trial_for(f"python3 {tmp_path}/make.py", FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert len(result.grading.model_dump_json()) < 64 * 1024
    assert result.grading.changed[-1].startswith("and ")
    report = tmp_path / "trials" / "trial-1" / "verifier" / "grading.json"
    assert len(GradingReport.model_validate_json(report.read_bytes()).changed) > len(result.grading.changed)


async def test_a_folder_that_is_there_already_costs_a_line_in_the_log_and_not_the_result(
    tmp_path, trial_for, control, caplog
):
    (tmp_path / "trials" / "trial-1").mkdir(parents=True)
    async with serving(tmp_path / "server") as url:
        with caplog.at_level(logging.WARNING, "agentic.rollout.server.client"):
            result = await control(url).run(trial_for(FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert "trial trial-1 leaves no folder here" in caplog.text
    assert "is there already" in caplog.text


async def test_a_place_for_folders_that_takes_nothing_costs_neither_result_nor_step(
    tmp_path, trial_for, control, caplog
):
    (tmp_path / "trials").write_text("no folder")
    async with serving(tmp_path / "server") as url:
        result = await control(url).run(trial_for(FIX))
    assert result.facts.rewards == {"reward": 1.0}
    assert "leaves no folder here" in caplog.text


async def test_a_disk_that_is_full_loses_the_trial_whose_task_cannot_be_packed(
    tmp_path, trial_for, control, monkeypatch
):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with serving(tmp_path / "server") as url:
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        lost = await control(url).run(trial_for(FIX))
    assert (lost.facts.rewards, lost.facts.exception) == (None, "OSError")
    assert "No space left" in lost.facts.message


async def test_a_task_that_cannot_be_read_loses_its_trial(tmp_path, trial_for, control, task_dir):
    os.mkfifo(task_dir / "pipe")
    async with serving(tmp_path / "server") as url:
        lost = await control(url).run(trial_for(FIX))
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TaskFolderError")


@asynccontextmanager
async def slow_link(url, bytes_a_second):
    """The URL of a way to a server that passes so much on, in either direction."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    ends, writers = [], []

    async def copy(reader, writer):
        writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(bytes_a_second // 20):
                await asyncio.sleep(len(data) / bytes_a_second)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(host, int(port), limit=4096)
        ends.extend(asyncio.create_task(copy(*pair)) for pair in ((reader, far_writer), (far_reader, writer)))

    way = await asyncio.start_server(connect, "127.0.0.1", 0, limit=4096)
    way.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        yield f"http://127.0.0.1:{way.sockets[0].getsockname()[1]}"
    finally:
        way.close()
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def test_a_slow_link_brings_a_large_task_and_a_large_folder_in_the_time_that_they_take(
    tmp_path, trial_for, control, task_dir
):
    (task_dir / "large").write_bytes(os.urandom(1_500_000))
    async with serving(tmp_path / "server") as url, slow_link(url, 400_000) as slow:
        large = "for n in 1 2 3 4 5 6 7 8; do head -c 100000 /dev/urandom | base64 > $n.txt; done"
        result = await control(slow, answer_seconds=1.0, unreachable_seconds=2.0).run(trial_for(large, FIX))
    assert result.facts.rewards == {"reward": 1.0}, result.facts
    assert (tmp_path / "trials" / "trial-1" / "verifier" / "diff.patch").stat().st_size > 800_000


async def test_a_server_that_takes_nothing_more_of_a_task_is_no_answer(answering, control, trial_for, task_dir):
    (task_dir / "large").write_bytes(os.urandom(16 << 20))

    async def stall(request):
        await asyncio.sleep(30)

    url = await answering(stall, task=stall)
    lost = await control(url, answer_seconds=0.3, unreachable_seconds=0.2).run(trial_for())
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TrialServerUnavailable")


async def test_a_server_whose_disk_is_full_is_asked_again_and_loses_nothing(tmp_path, trial_for, control, monkeypatch):
    full = 2

    real = Path.rename

    def rename(self, target):
        nonlocal full
        if full and target.parent.name == "tasks":
            full -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    async with serving(tmp_path / "server", retry_after_seconds=1) as url:
        result = await control(url).run(trial_for(FIX))
    assert (result.facts.rewards, full) == ({"reward": 1.0}, 0)


class Breaking:
    """Stands for a runner that cannot run anything."""

    async def run(self, request):
        raise RuntimeError("can't start new thread")

    async def sweep(self):
        """Nothing was left."""

    async def close(self):
        """Nothing runs."""


async def test_a_trial_that_the_server_cannot_run_ends_with_the_reason_and_frees_its_place(
    tmp_path, trial_for, control
):
    async with serving(tmp_path / "server", runner=Breaking(), concurrency=1) as url:
        for name in ("first", "second"):
            lost = await asyncio.wait_for(control(url).run(trial_for(trial_id=name)), 10)
            assert (lost.facts.rewards, lost.facts.exception) == (None, "RuntimeError")
            assert lost.facts.message == "can't start new thread"


async def test_a_task_that_was_removed_while_its_trial_waited_is_its_reason(tmp_path, trial_for, control, gate):
    async with serving(tmp_path / "server", concurrency=1) as url:
        first = asyncio.create_task(control(url).run(trial_for(gate.command, FIX, trial_id="first")))
        await gate.begun()
        second = asyncio.create_task(control(url).run(trial_for(FIX, trial_id="second")))
        await filled(url)
        for folder in (tmp_path / "server" / "tasks").iterdir():
            shutil.rmtree(folder)
        gate.open()
        await first
        lost = await asyncio.wait_for(second, 10)
    assert (lost.facts.rewards, lost.facts.exception) == (None, "TaskFolderError")
    assert "was removed" in lost.facts.message
