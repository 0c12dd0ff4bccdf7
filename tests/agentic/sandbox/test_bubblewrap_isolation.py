"""What untrusted code can't do in a bubblewrap sandbox, tried by doing it."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from agentic.sandbox.base import SandboxSpec
from agentic.sandbox.errors import SandboxLostError, SandboxStartError
from agentic.sandbox.local.bubblewrap import BubblewrapProvider, BubblewrapSandboxHandle
from agentic.sandbox.probe import PROMISES, probe
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import BubblewrapSandbox

MakeSpec = Callable[..., SandboxSpec]


def processes_of(run_id: str) -> list[int]:
    """Processes whose cgroup carries the run's name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"agentic-{run_id}." in (folder / "cgroup").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def cgroups_of(run_id: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(f"agentic-{run_id}.*") if path.is_dir()]


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


def test_bubblewrap_is_installed() -> None:
    assert shutil.which("bwrap"), "the tests need bubblewrap: apt-get install bubblewrap"


async def test_every_promise_of_the_probe_is_kept(provider: BubblewrapProvider, store: RootfsStore) -> None:
    findings = await probe(provider, store.ensure_base(), PROMISES)
    assert [finding for finding in findings if not finding.is_kept] == []
    assert len(findings) == len(PROMISES)


async def test_python_inside_is_ours_and_not_a_shim(provider: BubblewrapProvider, make_spec: MakeSpec) -> None:
    sandbox = await provider.acquire(make_spec())
    code = "import sys, ssl, sqlite3, ctypes; print(sys.version_info[:3], sys.executable)"
    result = await sandbox.exec(["python3", "-c", code])
    assert result.text == f"{tuple(sys.version_info[:3])} /opt/python/bin/python3\n", result.error_text


async def test_the_bound_socket_is_the_only_way_out(
    provider: BubblewrapProvider, make_spec: MakeSpec, tmp_path: Path
) -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text=f"hello {await request.text()}")

    app = web.Application()
    app.router.add_post("/greet", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    socket = tmp_path / "proxy.sock"
    await web.UnixSite(runner, str(socket)).start()
    client = textwrap.dedent("""
        import http.client, socket
        connection = http.client.HTTPConnection("proxy")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect("/run/agentic/proxy.sock")
        connection.request("POST", "/greet", body="sandbox")
        print(connection.getresponse().read().decode())
    """)
    try:
        sandbox = await provider.acquire(make_spec(sockets={socket: "/run/agentic/proxy.sock"}))
        result = await sandbox.exec(["python3", "-c", client])
        assert result.text == "hello sandbox\n", result.error_text
    finally:
        await runner.cleanup()


async def test_a_socket_that_is_none_is_refused(
    provider: BubblewrapProvider, make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(SandboxStartError, match="socket"):
            await provider.acquire(make_spec(sockets={path: "/run/x"}))


async def test_a_folder_of_the_host_is_shown_and_cannot_be_written(
    provider: BubblewrapProvider, make_spec: MakeSpec, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir(mode=0o755)
    (tools / "program").write_text("echo works")
    sandbox = await provider.acquire(make_spec(folders={tools: "/opt/agentic/tools"}))
    result = await sandbox.exec(
        "sh /opt/agentic/tools/program && touch /opt/agentic/tools/x /opt/agentic/tools/program"
    )
    assert (result.text, result.exit_code) == ("works\n", 1)
    assert "Read-only file system" in result.error_text
    assert (await sandbox.exec("touch /opt/agentic/beside")).exit_code == 0
    assert [path.name for path in tools.iterdir()] == ["program"]
    with pytest.raises(SandboxStartError, match="no folder"):
        await provider.acquire(make_spec(folders={tmp_path / "missing": "/opt/x"}))


async def test_a_fork_bomb_is_contained_and_ends_with_its_command(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    bombed, neighbour = await provider.acquire(make_spec()), await provider.acquire(make_spec())
    bomb = asyncio.create_task(bombed.exec("bomb() { bomb | bomb & }; bomb; sleep 60", timeout_seconds=2))
    await asyncio.sleep(0.5)
    assert (await neighbour.exec("echo calm")).text == "calm\n"
    assert (await bomb).timed_out
    assert (await bombed.exec("echo over")).text == "over\n"
    assert len(processes_of("test")) < 20


async def test_a_memory_hog_is_killed_and_its_sandbox_lives(provider: BubblewrapProvider, make_spec: MakeSpec) -> None:
    sandbox = await provider.acquire(make_spec())
    hog = "blocks = []\nwhile True: blocks.append(bytearray(1 << 22))"
    assert (await sandbox.exec(["python3", "-c", hog])).exit_code == 137
    assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_filling_shared_memory_and_scratch_space_does_not_end_the_sandbox(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    result = await sandbox.exec("head -c 1G /dev/zero > /dev/shm/a; head -c 1G /dev/zero > /b; echo x > /dev/c")
    assert result.error_text.count("No space left on device") == 2
    assert "Read-only file system" in result.error_text
    assert (await sandbox.exec("rm /dev/shm/a /b && echo alive")).text == "alive\n"


async def test_processor_time_is_bounded(store: RootfsStore, make_spec: MakeSpec) -> None:
    provider = BubblewrapProvider(BubblewrapSandbox(cpus=0.2), store)
    try:
        sandbox = await provider.acquire(make_spec())
        burn = "import time\nend = time.time() + 1\nwhile time.time() < end: pass\nprint(time.process_time())"
        assert float((await sandbox.exec(["python3", "-S", "-E", "-c", burn])).text) < 0.5
    finally:
        await provider.close()


async def test_a_timed_out_command_takes_its_daemons_along_but_not_those_of_others(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    await sandbox.exec("setsid sleep 701 >/dev/null 2>&1 &")
    result = await sandbox.exec("(setsid sleep 702 &) ; nohup sleep 703 & sleep 704", timeout_seconds=0.5)
    assert result.timed_out
    left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep [7]0.'")
    assert left.text == "sleep 701\n"


async def test_a_command_that_ends_in_time_has_not_timed_out_however_late_that_is_seen(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    spawner = (await provider.client()).pid
    running = asyncio.create_task(sandbox.exec("sleep 0.3; echo done", timeout_seconds=0.6))
    await asyncio.sleep(0.1)
    os.kill(spawner, signal.SIGSTOP)  # It wakes to a command that has ended and to its deadline at once.
    await asyncio.sleep(0.8)
    os.kill(spawner, signal.SIGCONT)
    result = await running
    assert (result.text, result.exit_code, result.timed_out) == ("done\n", 0, False)


async def test_a_program_whose_first_thread_has_ended_still_times_out(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    lasts = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    program = f"{lasts}; ctypes.CDLL(None).pthread_exit(None)"
    result = await asyncio.wait_for(sandbox.exec(["python3", "-S", "-E", "-c", program], timeout_seconds=2), 20)
    assert result.timed_out
    left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'pthread_[e]xit'")
    assert left.text == "0\n"


async def test_ends_and_deadlines_that_meet_lose_no_sandbox(provider: BubblewrapProvider, make_spec: MakeSpec) -> None:
    """Where a command has a cgroup, which is removed as it ends."""
    sandbox, neighbour = await provider.acquire(make_spec()), await provider.acquire(make_spec())
    deadlines = [0.4 + milliseconds / 1000 for milliseconds in range(60)]
    results = await asyncio.gather(*(sandbox.exec("sleep 0.4", timeout_seconds=seconds) for seconds in deadlines))
    assert {(result.exit_code, result.timed_out) for result in results} <= {(0, False), (124, True)}
    assert (await neighbour.exec("echo lives")).text == "lives\n"


async def test_background_processes_live_on_and_their_output_blocks_nobody(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    chatter = "i=0; while [ $i -lt 3000 ]; do echo $i of a long line that fills the pipe; i=$((i+1)); done"
    server = f"({chatter}; touch /done; sleep 60) &"
    assert (await sandbox.exec(server, timeout_seconds=5)).exit_code == 0
    waited = await sandbox.exec("while [ ! -e /done ]; do sleep 0.05; done", timeout_seconds=10)
    assert not waited.timed_out


async def test_orphans_are_reaped(provider: BubblewrapProvider, make_spec: MakeSpec) -> None:
    sandbox = await provider.acquire(make_spec())
    await sandbox.exec("for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; sleep 0.3")
    states = await sandbox.exec("cat /proc/[0-9]*/stat | cut -d' ' -f3")
    assert "Z" not in states.text.split()


@pytest.mark.parametrize(
    "attack",
    [
        "kill -9 1; kill -9 -1",
        "kill -STOP 1; kill -TERM 1; kill -INT 1",
        # Attach to process 1 and make it end: PTRACE_SEIZE is 0x4206, PTRACE_KILL is 8.
        "python3 -c 'import ctypes; trace = ctypes.CDLL(None).ptrace; trace(0x4206, 1, 0, 0); trace(8, 1, 0, 0)'",
        "echo 1000 > /proc/1/oom_score_adj; cat /proc/1/environ /proc/1/mem",
    ],
)
async def test_nothing_inside_can_end_the_sandbox(
    provider: BubblewrapProvider, make_spec: MakeSpec, attack: str
) -> None:
    sandbox = await provider.acquire(make_spec())
    await sandbox.exec(attack, timeout_seconds=10)
    assert (await sandbox.exec("exit 7")).exit_code == 7


async def test_a_command_that_kills_all_it_sees_still_reports_its_own_failure(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    """However fast: a process inside shoots at every new process, the ones that are just being entered included."""
    sandbox = await provider.acquire(make_spec())
    shooter = textwrap.dedent("""
        import os, signal
        while True:
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) not in (1, os.getpid()):
                    try: os.kill(int(name), signal.SIGKILL)
                    except OSError: pass
    """)
    await sandbox.exec(f"setsid python3 -S -E -c '{shooter}' >/dev/null 2>&1 & sleep 0.3")
    codes = [(await sandbox.exec("exit 3", timeout_seconds=10)).exit_code for _ in range(40)]
    assert set(codes) <= {3, 137}


async def test_users_other_than_root_have_no_more_rights(provider: BubblewrapProvider, make_spec: MakeSpec) -> None:
    sandbox = await provider.acquire(make_spec())
    result = await sandbox.exec("id -u; cat ~root/x; echo mine > /tmp/mine; stat -c %u /tmp/mine", user="nobody")
    assert result.text.split() == ["65534", "65534"]
    assert "Permission denied" in result.error_text
    assert (await sandbox.exec("true", user="ghost")).exit_code == 126


async def test_losing_the_sandbox_raises_whatever_was_running(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    running = asyncio.create_task(sandbox.exec("sleep 60"))
    await asyncio.sleep(0.2)
    for pid in processes_of("test"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # some have just ended
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0infinity"):
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLostError):
        await running
    with pytest.raises(SandboxLostError):
        await sandbox.exec("true")
    await sandbox.release()
    assert await eventually(lambda: not cgroups_of("test"))


async def test_losing_the_spawner_loses_its_sandboxes_and_the_next_one_starts(
    provider: BubblewrapProvider, make_spec: MakeSpec
) -> None:
    sandbox = await provider.acquire(make_spec())
    running = asyncio.create_task(sandbox.exec("sleep 60"))
    await asyncio.sleep(0.2)
    client = await provider.client()
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(SandboxLostError):
        await running
    again = await provider.acquire(make_spec())
    assert (await again.exec("echo back")).text == "back\n"
    await sandbox.release()


async def test_a_start_that_fails_says_why_and_leaves_nothing(store: RootfsStore, make_spec: MakeSpec) -> None:
    provider = BubblewrapProvider(BubblewrapSandbox(bwrap="/bin/false"), store)
    try:
        with pytest.raises(SandboxStartError, match="was not started"):
            await provider.acquire(make_spec())
        assert cgroups_of("test") == []
        assert not list((store.root / "running").glob("test/*"))
    finally:
        await provider.close()


async def test_cancelling_a_start_leaves_nothing(provider: BubblewrapProvider, make_spec: MakeSpec) -> None:
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        starting = asyncio.create_task(provider.acquire(make_spec()))
        await asyncio.sleep(delay)
        starting.cancel()
        result = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(result, BubblewrapSandboxHandle):
            await result.release()
    assert await eventually(lambda: not processes_of("test") and not cgroups_of("test"))


async def test_fifty_at_once(store: RootfsStore, make_spec: MakeSpec) -> None:
    provider = BubblewrapProvider(BubblewrapSandbox(), store)

    async def one(number: int) -> str:
        sandbox = await provider.acquire(make_spec())
        await sandbox.exec(f"echo {number} > /tmp/number")
        await asyncio.sleep(0)
        result = await sandbox.exec("cat /tmp/number")
        assert result.exit_code == 0, result
        return result.text.strip()

    try:
        assert await asyncio.gather(*map(one, range(50))) == [str(number) for number in range(50)]
        assert len({path.name for path in cgroups_of("test")}) == 50
    finally:
        await provider.close()
    assert processes_of("test") == []
    assert cgroups_of("test") == []


OWNER = """
import asyncio, sys
from pathlib import Path
from agentic.sandbox.base import SandboxSpec
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import BubblewrapSandbox

async def main():
    settings = BubblewrapSandbox()
    store = open_store(Path(sys.argv[1]), settings)
    provider = make_provider(settings, store)
    for number in range(3):
        sandbox = await provider.acquire(SandboxSpec(sys.argv[2], f"s{number}", store.ensure_base()))
        await sandbox.exec("setsid sleep 600 >/dev/null 2>&1 &")
    print("up", flush=True)
    await sandbox.exec("sleep 600")

asyncio.run(main())
"""


async def test_a_killed_owner_leaves_no_process_and_a_sweep_leaves_nothing(
    provider: BubblewrapProvider, store: RootfsStore, make_spec: MakeSpec
) -> None:
    mine = await provider.acquire(make_spec(run_id="swept"))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(store.root), "swept"], stdout=subprocess.PIPE, env={**os.environ}
    )
    with owner:
        assert owner.stdout is not None
        assert await asyncio.to_thread(owner.stdout.readline) == b"up\n"
        assert await provider.sweep("swept") == 0, "its owner lives"
        owner.kill()
    only_mine = {"agentic-swept." + mine.spec.sandbox_id}
    assert await eventually(lambda: len(processes_of("swept")) == 2), processes_of("swept")
    assert await provider.sweep("another-run") == 0
    assert [await provider.sweep("swept"), await provider.sweep("swept")] == [3, 0]
    assert {path.name for path in cgroups_of("swept")} == only_mine
    assert [path.name for path in (store.root / "running" / "swept").iterdir()] == [mine.spec.sandbox_id]
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if "overlay /tmp" in line]
    assert (await mine.exec("echo untouched")).text == "untouched\n"


async def test_without_cgroups_it_runs_warns_and_still_kills_what_times_out(
    store: RootfsStore, make_spec: MakeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    provider = BubblewrapProvider(BubblewrapSandbox(limits="none"), store)
    assert "no limit on memory" in caplog.text
    try:
        sandbox = await provider.acquire(make_spec())
        await sandbox.exec("setsid sleep 711 >/dev/null 2>&1 &")
        await asyncio.sleep(0.05)
        assert (await sandbox.exec("(setsid sleep 712 &) ; sleep 713", timeout_seconds=0.5)).timed_out
        left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep [7]1.'")
        assert left.text == "sleep 711\n"
    finally:
        await provider.close()


async def test_without_root_rights_over_ids_a_single_id_is_mapped(tmp_path: Path) -> None:
    """A store without an owner of its own is what users other than root have."""
    store = RootfsStore(tmp_path / "store")
    provider = BubblewrapProvider(BubblewrapSandbox(), store)
    numbers = itertools.count()
    try:
        for _ in range(2):
            sandbox = await provider.acquire(SandboxSpec("rootless", f"s{next(numbers)}", store.ensure_base()))
            result = await sandbox.exec(
                "echo x > /etc/new && cat /proc/self/uid_map /etc/new; grep CapEff /proc/self/status"
            )
            assert result.text.split() == ["0", "0", "1", "x", "CapEff:", "0000000000000000"], result
            assert (await sandbox.exec("kill -9 -1; kill -9 1; exit 5")).exit_code in (5, 137)
            assert (await sandbox.exec("true", user="nobody")).exit_code == 126
    finally:
        await provider.close()
