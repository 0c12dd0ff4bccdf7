"""Commands in pods: over the API server double, with real WebSockets and real processes, and by the exec server."""

import asyncio
import contextlib
import pwd
import shutil
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from exec_server_rig import ExecServerRig
from faulty_proxy import FaultyProxy
from hypothesis import given
from hypothesis import strategies as st
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import PODS
from agentic.cluster.settings import KubeClientSettings
from agentic.sandbox.errors import SandboxLostError
from agentic.sandbox.kube.execution import ExecRequest, SandboxExec
from agentic.sandbox.kube.pod_exec import PodExec, PodTarget
from agentic.sandbox.kube.wrapper import Marked, wrap

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods of the double need bubblewrap")

QUICK = KubeClientSettings(retry_seconds=3.0, ping_seconds=0.2)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(FixedCredentials(Access(server.address)), QUICK) as api:
        yield api


@pytest_asyncio.fixture(params=["v5", "v4", "exec-server"])
async def channel(request: pytest.FixtureRequest, server: KubeApiServer, api: KubeClient) -> AsyncIterator[SandboxExec]:
    if request.param == "exec-server":
        async with ExecServerRig() as rig:
            yield await rig.connect()
        return
    if request.param == "v4":
        server.pods.protocols = ("v4.channel.k8s.io",)
    pod = await make_pod(server, api, "p1")
    yield pod
    await pod.close()


@pytest_asyncio.fixture(params=["v5", "v4"])
async def pod(request: pytest.FixtureRequest, server: KubeApiServer, api: KubeClient) -> AsyncIterator[PodExec]:
    if request.param == "v4":
        server.pods.protocols = ("v4.channel.k8s.io",)
    exec_ = await make_pod(server, api, "p1")
    yield exec_
    await exec_.close()


async def make_pod(server: KubeApiServer, api: KubeClient, name: str) -> PodExec:
    await api.create(PODS, {**PODS.head(name), "spec": {"containers": [{"name": "main"}]}})
    while server.store.objects["pods", "default", name].get("status", {}).get("phase") != "Running":
        await asyncio.sleep(0.01)
    return PodExec(api, PodTarget(name, "main"))


def ask(command: str | list[str], timeout_seconds: float = 20.0, **more: object) -> ExecRequest:
    return ExecRequest(command, timeout_seconds, **more)  # type: ignore[arg-type]


async def is_running(channel: SandboxExec, words: str) -> bool:
    return (await channel.run(ask(f"pgrep -f '^{words}'"))).exit_code == 0


async def test_code_and_outputs_come_apart_and_without_noise(channel: SandboxExec) -> None:
    result = await channel.run(ask("echo out; echo err >&2; exit 3"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


async def test_every_exit_code_is_the_commands_own(channel: SandboxExec) -> None:
    codes = [(await channel.run(ask(f"exit {code}"))).exit_code for code in (0, 1, 124, 126, 127, 137, 255)]
    assert codes == [0, 1, 124, 126, 127, 137, 255]


async def test_a_killed_command_is_a_result(channel: SandboxExec) -> None:
    assert (await channel.run(ask("kill -9 $$"))).exit_code == 137


async def test_standard_input_arrives_byte_for_byte_and_ends(channel: SandboxExec) -> None:
    data = bytes(range(256)) * 5000
    assert (await channel.run(ask("cat", stdin=data, output_limit_bytes=2 << 20))).stdout == data
    assert (await channel.run(ask("wc -c", stdin=b"x"))).text.strip() == "1"
    assert (await channel.run(ask("cat"))).stdout == b""


async def test_a_command_that_does_not_read_its_input_ends_all_the_same(channel: SandboxExec) -> None:
    assert (await channel.run(ask("echo done", stdin=b"x" * 3_000_000))).text == "done\n"


async def test_folder_and_environment_are_set(channel: SandboxExec) -> None:
    result = await channel.run(ask('pwd; echo "$GREETING"', cwd="/usr/bin", env={"GREETING": "a 'b'\n$c"}))
    assert result.text == "/usr/bin\na 'b'\n$c\n"


async def test_words_are_run_without_a_shell(channel: SandboxExec) -> None:
    assert (await channel.run(ask(["echo", "$HOME;", "--", "*"]))).text == "$HOME; -- *\n"


async def test_a_folder_that_is_not_there_is_a_result(channel: SandboxExec) -> None:
    result = await channel.run(ask("true", cwd="/nowhere"))
    assert (result.exit_code, "/nowhere" in result.error_text) == (126, True)


async def test_a_command_longer_than_any_address_or_argument_runs(channel: SandboxExec) -> None:
    line = f"wc -c <<'END'\n{'x' * 200_000}\nEND\ncat; echo $A"
    result = await channel.run(ask(line, stdin=b"input\n", env={"A": "it's"}))
    assert result.text == "200001\ninput\nit's\n"


async def test_another_user_runs_it_when_asked_for(channel: SandboxExec) -> None:
    assert (await channel.run(ask("id -un", user="nobody"))).text == "nobody\n"
    assert (await channel.run(ask("id -un", user="0"))).text == "root\n"
    assert (await channel.run(ask("id", user="no-such-user"))).exit_code == 126


async def test_another_user_has_his_own_home_and_no_other_beside_it(channel: SandboxExec) -> None:
    home = pwd.getpwnam("nobody").pw_dir
    told = (await channel.run(ask(["env"], user="nobody"))).text.splitlines()
    assert [line for line in told if line.startswith("HOME=")] == [f"HOME={home}"]


async def test_a_name_that_no_shell_can_export_is_refused(channel: SandboxExec) -> None:
    with pytest.raises(ValueError, match="a-b"):
        await channel.run(ask("true", env={"a-b": "1"}))


async def test_running_out_of_time_kills_the_command_and_all_it_started(channel: SandboxExec) -> None:
    started = time.monotonic()
    result = await channel.run(ask("echo begun; (setsid sleep 71 &); sleep 72 & sleep 73", timeout_seconds=0.5))
    assert (result.exit_code, result.timed_out, result.text) == (124, True, "begun\n")
    assert time.monotonic() - started < 5
    assert not await is_running(channel, "sleep 7")
    assert (await channel.run(ask("echo next"))).text == "next\n"


async def test_cancelling_kills_the_command_inside(channel: SandboxExec) -> None:
    running = asyncio.create_task(channel.run(ask("sleep 74")))
    while not await is_running(channel, "sleep 74"):
        await asyncio.sleep(0.05)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert not await is_running(channel, "sleep 74")


async def test_what_is_left_in_the_background_neither_holds_up_the_result_nor_dies(channel: SandboxExec) -> None:
    started = time.monotonic()
    result = await channel.run(ask("(while :; do echo tick; echo x >> /tmp/ticks; sleep 0.1; done) & echo now"))
    assert ("now" in result.text.splitlines(), time.monotonic() - started < 2) == (True, True)
    counts = []
    for _ in range(2):
        await asyncio.sleep(0.5)
        counts.append(int((await channel.run(ask("wc -l < /tmp/ticks"))).text))
    assert counts[0] < counts[1]


async def test_ending_commands_ends_everything_and_keeps_the_pod(channel: SandboxExec) -> None:
    running = asyncio.create_task(channel.run(ask("sleep 75")))
    while not await is_running(channel, "sleep 75"):
        await asyncio.sleep(0.05)
    await channel.run(ask("(setsid sleep 76 &) > /dev/null 2>&1; echo kept > /tmp/kept"))
    await channel.end_commands()
    await channel.end_commands()
    assert (await running).exit_code == 137
    assert not await is_running(channel, "sleep 7")
    assert (await channel.run(ask("cat /tmp/kept"))).text == "kept\n"


async def test_output_is_bounded_at_both_ends_while_it_streams(channel: SandboxExec) -> None:
    result = await channel.run(ask("echo first; yes | head -c 30000000; echo last", output_limit_bytes=10_000))
    assert result.truncated
    assert len(result.stdout) < 10_100
    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"last\n")


async def test_a_lost_pod_is_never_an_exit_code(server: KubeApiServer, pod: PodExec) -> None:
    running = asyncio.create_task(pod.run(ask("sleep 77")))
    while not await is_running(pod, "sleep 77"):
        await asyncio.sleep(0.05)
    uid = server.store.objects["pods", "default", "p1"]["metadata"]["uid"]
    await pod.api.delete(PODS, "p1")
    with pytest.raises(SandboxLostError, match="p1 is lost"):
        await running
    assert uid not in server.pods.running
    with pytest.raises(SandboxLostError, match="not found"):
        await pod.run(ask("true"))


async def test_a_restarted_container_is_a_lost_sandbox(server: KubeApiServer, pod: PodExec) -> None:
    await pod.run(ask("true"))
    server.pods.kill(server.store.objects["pods", "default", "p1"]["metadata"]["uid"])
    await asyncio.sleep(0.05)
    with pytest.raises(SandboxLostError, match="restarted"):
        await pod.run(ask("echo fresh"))


async def test_a_dropped_stream_is_a_loss_and_its_command_is_killed(server: KubeApiServer, pod: PodExec) -> None:
    running = asyncio.create_task(pod.run(ask("sleep 78")))
    while not await is_running(pod, "sleep 78"):
        await asyncio.sleep(0.05)
    server.pods.drop_streams()
    with pytest.raises(SandboxLostError, match="stream broke"):
        await running
    assert not await is_running(pod, "sleep 78")


async def test_a_silent_command_outlives_the_servers_idle_time_out(server: KubeApiServer, pod: PodExec) -> None:
    server.pods.idle_seconds = 0.6
    assert (await pod.run(ask("sleep 2; echo awake"))).text == "awake\n"
    async with KubeClient(FixedCredentials(Access(server.address)), KubeClientSettings(ping_seconds=60)) as silent:
        with pytest.raises(SandboxLostError):
            await PodExec(silent, pod.target).run(ask("sleep 2"))


@pytest.mark.parametrize(
    "fault", [Fault(path="/exec", status=429), Fault(path="/exec", status=503), Fault(path="/exec")]
)
async def test_what_fails_before_the_command_began_is_tried_again(
    server: KubeApiServer, pod: PodExec, fault: Fault
) -> None:
    server.faults.append(fault)
    assert (await pod.run(ask("echo once"))).text == "once\n"
    assert fault.seen == 1


async def test_many_commands_run_at_once_on_one_loop_without_threads(channel: SandboxExec) -> None:
    import threading

    before, started = threading.active_count(), time.monotonic()
    results = await asyncio.gather(*(channel.run(ask("sleep 1")) for _ in range(40)))
    assert {result.exit_code for result in results} == {0}
    assert time.monotonic() - started < 5
    assert threading.active_count() == before


@pytest.mark.parametrize("protocol", ["v5", "v4"])
async def test_a_command_whose_opening_was_lost_on_the_way_runs_once(server: KubeApiServer, protocol: str) -> None:
    if protocol == "v4":
        server.pods.protocols = ("v4.channel.k8s.io",)
    async with (
        FaultyProxy(Access(server.address)) as proxy,
        KubeClient(FixedCredentials(Access(proxy.address)), QUICK) as api,
    ):
        pod = await make_pod(server, api, "p1")
        cases: list[dict[str, Any]] = [{}, {"stdin": b"input"}, {"env": {"LONG": "x" * 9000}}]
        for number, more in enumerate(cases):
            proxy.faults.append(Fault(path="/exec", times=2, after=True))
            counted = f"echo x >> /tmp/count{number}; sleep 0.4; cat /tmp/count{number}"
            result = await pod.run(ask(counted, **more))
            assert (result.stdout, result.exit_code, result.stderr) == (b"x\n", 0, b"")
        assert proxy.injected["broken after"] == 6
        proxy.faults.append(Fault(path="/exec", after=True))
        await pod.end_commands()
        assert (await pod.run(ask("sleep 0.5; echo alive"))).text == "alive\n"
        await pod.close()


SHOWING = (
    "cat /proc/self/environ | tr '\\0' ' '",
    "env | tr '\\n' ' '",
    'printf "%s 12" "$AGENTIC_EXEC"; printf " x\\n"',
    "cat /proc/$PPID/environ /proc/$PPID/cmdline | tr '\\0' ' '",
)


@pytest.mark.parametrize("line", SHOWING)
async def test_output_that_shows_a_commands_own_environment_is_output(pod: PodExec, line: str) -> None:
    shown = await pod.run(ask(f"({line}) > /tmp/shown; {line}; echo =; cat /tmp/shown"))
    first, second = shown.text.rsplit("=\n", 1)
    assert len(first.strip()) == len(second.strip()) > 16
    assert shown.exit_code == 0


async def test_no_command_can_forge_its_end(pod: PodExec) -> None:
    words = "$AGENTIC_EXEC $(tr '\\0' ' ' < /proc/$PPID/cmdline | grep -oE '[0-9a-f]{16}')"
    forging = f'for word in {words}; do echo "$word 0"; echo "$word 0" >&2; done; sleep 0.5; exit 7'
    assert (await pod.run(ask(forging))).exit_code == 7
    out_of_time = await pod.run(ask(forging.replace("0.5", "30"), timeout_seconds=0.5))
    assert (out_of_time.exit_code, out_of_time.timed_out) == (124, True)


def test_what_follows_a_mark_is_never_held_back() -> None:
    found, chunk = Marked("ab" * 8), b"1" * 32768
    passed = len(found.feed(b"ab" * 8 + b" "))
    for _ in range(64):
        passed += len(found.feed(chunk))
    assert (passed + len(found.rest()), found.marks) == (17 + 64 * 32768, [])


@given(st.text(max_size=3000) | st.text("修\n\"' ", min_size=1500, max_size=9000))
def test_no_address_is_longer_than_proxies_take(command: str) -> None:
    words = wrap(ask(command, env={"A": command[:100]})).words
    assert len(urlencode([("command", word) for word in words])) <= 7700


@given(st.lists(st.binary(max_size=6)), st.integers(1, 9), st.data())
def test_marks_are_taken_out_of_a_stream_however_it_is_cut(parts: list[bytes], codes: int, data: st.DataObject) -> None:
    mark = "ab12"
    plain = [part.replace(b"ab12", b"") for part in parts] + [
        b"ab1",
        b"ab12",
        b"ab12 ",
        b"ab12 7 x\nab12  1\n",
        b"ab12 7ab12 ",
    ]
    stream = b"".join(part + b"ab12 %d\n" % codes for part in plain)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    found = Marked(mark)
    out = b"".join(found.feed(stream[start:end]) for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True))
    assert out + found.rest() == b"".join(plain)
    assert found.marks == [[str(codes)]] * len(plain)
