"""A trial server that is killed and started again: nothing is run twice, nothing that was answered is forgotten."""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_server_rig import KEY, start_process

from agentic.rollout.errors import JournalError
from agentic.rollout.outcomes import TrialFacts
from agentic.rollout.server.book import Entry, read_rows, row_of, rows_of
from agentic.rollout.server.client import TrialServerControl
from agentic.rollout.server.journal import Journal
from agentic.rollout.server.service import TrialService
from agentic.rollout.server.settings import ServerSettings
from agentic.rollout.server.tasks import TaskStore
from agentic.rollout.server.wire import TrialOrder, TrialState
from agentic.rollout.settings import ScriptedAgentSettings, TrialServerSettings
from agentic.rollout.trial import EnvironmentSpec, TrialResult
from agentic.sandbox.settings import BubblewrapSandbox

FIX = "echo '1 + 2' > calc.txt"


@pytest.fixture
async def server(tmp_path):
    """Starts server processes over one state folder; those that are left are killed."""
    started = []

    async def start(*settings, port=0, arguments=()):
        process, url = await start_process(tmp_path / "server", *settings, port=port, arguments=arguments)
        started.append(process)
        return process, url

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()


async def test_a_killed_server_reports_what_ran_and_runs_what_waited_once(tmp_path, trial_for, server, gate):
    ran = tmp_path / "ran"
    process, url = await server("concurrency=1")
    trials = TrialServerControl(TrialServerSettings(url=url), KEY)
    ended = await trials.run(trial_for(f"echo ended >> {ran}", FIX, trial_id="ended"))
    assert ended.facts.rewards == {"reward": 1.0}
    running = asyncio.create_task(trials.run(trial_for(f"echo runs >> {ran}", gate.command, trial_id="runs")))
    await wait_for_line(ran, "runs")
    waiting = asyncio.create_task(trials.run(trial_for(f"echo waits >> {ran}", FIX, trial_id="waits")))
    await wait_for_line(tmp_path / "server" / "journal.jsonl", '"trial":"waits"')
    process.kill()
    await process.wait()
    await server("concurrency=1", port=int(url.rpartition(":")[2]))
    assert (await running).facts.exception == "ServerRestarted"
    assert (await waiting).facts.rewards == {"reward": 1.0}
    assert sorted(ran.read_text().split()) == ["ended", "runs", "waits"], "each ran exactly once"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:
        again = await (await http.get(f"{url}/v1/trials/ended")).json()
    assert again["result"]["facts"]["rewards"] == {"reward": 1.0}, "answered from the record"
    await trials.close()


async def wait_for_line(path, text, seconds=20):
    async with asyncio.timeout(seconds):
        while not path.exists() or text not in path.read_text():
            await asyncio.sleep(0.05)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_killed_servers_sandboxes_are_gone_when_the_next_one_answers(tmp_path, build_tasks, trial_for, server):
    sandbox = BubblewrapSandbox(memory_mb=128, scratch_mb=16)
    (task,) = await build_tasks(tmp_path / "data", sandbox, "calc", store_dir=tmp_path / "server" / "images")
    settings = ["sandbox.memory_mb=128", "sandbox.scratch_mb=16", f"environments=[{EnvironmentSpec().import_path}]"]
    process, url = await server(*settings)
    trials = TrialServerControl(TrialServerSettings(url=url), KEY)
    asleep = "31.4159"
    request = trial_for(f"sleep {asleep}", task_dir=str(task), environment=EnvironmentSpec())
    running = asyncio.create_task(trials.run(request))
    async with asyncio.timeout(30):
        while not has_process(asleep):
            assert not running.done(), running.result()
            await asyncio.sleep(0.1)
    process.kill()
    await process.wait()
    await server(*settings, port=int(url.rpartition(":")[2]))
    assert (await running).facts.exception == "ServerRestarted"
    assert not has_process(asleep)
    await trials.close()


def has_process(word):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                return True
    return False


async def test_sigterm_ends_trials_with_their_sandboxes_and_the_process(trial_for, server, tmp_path):
    ran = tmp_path / "ran"
    process, url = await server()
    trials = TrialServerControl(TrialServerSettings(url=url, unreachable_seconds=0.5), KEY)
    running = asyncio.create_task(trials.run(trial_for(f"echo runs >> {ran}", "sleep 27.1828")))
    await wait_for_line(ran, "runs")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 15) in (0, -signal.SIGTERM)
    assert (await running).facts.exception == "ServerStopping"
    assert not has_process("27.1828")
    await trials.close()


async def test_two_servers_cannot_share_a_state_folder(server, tmp_path):
    await server()
    second = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentic.rollout.server", "--state", str(tmp_path / "server"), "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    _, said = await second.communicate()
    assert second.returncode == 78
    assert "belongs to another server" in said.decode()


ORDER = TrialOrder(
    trial_id="t",
    task="0" * 64,
    nonce="nonce-of-a-test",
    agent=ScriptedAgentSettings(),
    base_url="http://127.0.0.1:9/v1",
    api_key="key",
    deadline_seconds=9,
    start_seconds=2,
    grading_seconds=2,
)
moves = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(TrialState))), max_size=12)


def live(steps):
    """Entries that went through these moves, and the rows that were written."""
    entries, rows = {}, []
    for name, state in steps:
        entry = entries.setdefault(name, Entry(name, ORDER.nonce, ORDER.model_copy(update={"trial_id": name})))
        if not entry.events and state is not TrialState.ACCEPTED:
            continue
        result = TrialResult(name, TrialFacts(rewards={"reward": 1.0})) if state is TrialState.ENDED else None
        event = entry.move(state, 1.0, result)
        if event is not None:
            rows.append(row_of(entry, event))
    return {name: entry for name, entry in entries.items() if entry.events}, rows


class NoRunner:
    """Runs nothing and ends nothing."""

    async def sweep(self):
        pass

    async def run(self, request):
        await asyncio.Event().wait()

    async def close(self):
        pass


async def test_a_trial_that_is_cancelled_in_the_moment_in_which_it_is_accepted_ends_and_leaves_its_place(tmp_path):
    settings = ServerSettings(state_dir=tmp_path, store_dir=tmp_path / "images")
    journal, tasks = Journal(tmp_path / "journal.jsonl"), TaskStore(tmp_path / "tasks", 1 << 20)
    tasks.find = lambda digest: tmp_path
    service = TrialService(settings, NoRunner(), journal, tasks)
    entry, _ = await service.submit(ORDER, "me")
    await asyncio.wait_for(service.cancel(entry), 10)
    assert (entry.is_over, service.capacity().queued) == (True, 0)
    await service.close()


def test_an_upload_that_ends_while_old_tasks_are_looked_for_is_in_nobodys_way(tmp_path):
    tasks = TaskStore(tmp_path / "tasks", 1 << 20)
    for name in (".incoming-1", "renamed"):
        (tmp_path / "tasks" / name).symlink_to("nowhere")
    tasks.remove_unused(1.0, frozenset())


async def test_leases_are_looked_after_although_the_disk_lets_nothing_be_tidied(tmp_path, monkeypatch):
    monkeypatch.setattr("agentic.rollout.server.service._TIDY_SECONDS", 0.0)
    settings = ServerSettings(state_dir=tmp_path, store_dir=tmp_path / "images", ping_seconds=0.5, lease_seconds=2.0)
    journal, tasks = Journal(tmp_path / "journal.jsonl"), TaskStore(tmp_path / "tasks", 1 << 20)
    tasks.find = lambda digest: tmp_path
    service = TrialService(settings, NoRunner(), journal, tasks)
    await service.start()
    tasks.remove_unused = Mock(side_effect=OSError("stale file handle"))
    try:
        entry, _ = await service.submit(ORDER, "me")
        async with asyncio.timeout(20):
            while not entry.is_over:
                await asyncio.sleep(0.05)
        assert tasks.remove_unused.call_count > 1
    finally:
        await service.close()


@given(moves, st.integers(0, 4000))
def test_a_journal_that_is_cut_anywhere_tells_of_a_prefix(steps, cut):
    _, rows = live(steps)
    text = b"".join(json.dumps(row).encode() + b"\n" for row in rows)[:cut]
    whole = [json.loads(line) for line in text.split(b"\n")[:-1]]
    assert whole == rows[: len(whole)]
    read = read_rows(whole)
    expected = {row["trial"]: row["state"] for row in whole}
    assert {name: entry.state for name, entry in read.items()} == expected
    assert all(entry.order is None for entry in read.values() if entry.state is TrialState.ENDED)


@given(moves)
def test_entries_come_back_from_their_rows_also_when_rows_are_doubled(steps):
    entries, rows = live(steps)
    rewritten = list(rows_of(entries.values()))
    for doubled in (rows, rewritten, [*rewritten, *rows]):
        read = read_rows(doubled)
        assert {n: e.events for n, e in read.items()} == {n: e.events for n, e in entries.items()}
        assert {n: e.order for n, e in read.items()} == {n: e.order for n, e in entries.items()}


async def test_a_journal_is_shortened_without_losing_what_is_appended_meanwhile(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    await asyncio.gather(*(journal.append({"trial": "old", "n": n}) for n in range(50)))
    journal.rewrite(lambda: [{"trial": "kept"}])
    await asyncio.gather(*(journal.append({"trial": "new", "n": n}) for n in range(3)))
    await journal.close()
    assert [row["trial"] for row in Journal(tmp_path / "journal.jsonl").read()] == ["kept", "new", "new", "new"]
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600


async def test_what_the_disk_does_not_take_whole_is_refused_and_taken_back(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    await journal.append({"trial": "kept"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "journal.jsonl").stat().st_size + 9, limits[1]))
    try:
        with pytest.raises(JournalError, match="free disk space"):
            await journal.append({"trial": "refused"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await journal.append({"trial": "later"})
    await journal.close()
    assert [row["trial"] for row in Journal(tmp_path / "journal.jsonl").read()] == ["kept", "later"]


async def test_a_rewritten_journals_name_is_on_the_disk_before_anything_is_added_to_it(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(file):
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        real(file)

    journal = Journal(tmp_path / "state" / "journal.jsonl")
    await journal.append({"trial": "a"})
    monkeypatch.setattr(os, "fsync", fsync)
    journal.rewrite(lambda: [{"trial": "a"}])
    await journal.append({"trial": "b"})
    await journal.close()
    assert synced == ["journal.partial", "state", "journal.jsonl"]
