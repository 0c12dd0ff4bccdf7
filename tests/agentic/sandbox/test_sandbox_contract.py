"""What every sandbox promises, tried on each of them, the double included."""

import asyncio
import contextlib
import functools
import os
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kube_rig import KINDS, cluster_rig, memory_rig

from agentic.sandbox.base import Sandbox, SandboxProvider, SandboxSpec
from agentic.sandbox.errors import SandboxLostError, SandboxStartError, SandboxTransferError
from agentic.sandbox.local.process import ProcessProvider
from agentic.sandbox.memory import MemoryProvider
from agentic.sandbox.providers import make_provider, open_store
from agentic.sandbox.settings import (
    BubblewrapSandbox,
    DockerSandbox,
    PodmanSandbox,
    SandboxLimits,
    SandboxSettings,
    UnsafeProcessSandbox,
)

RUN_ID = f"contract-{os.getpid()}"
OUTPUT_LIMIT_BYTES = 64 * 1024
SPEC: dict[str, Any] = {"env": {"GREETING": "hello"}, "workdir": "/app"}
ULIMITS = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000")
"""Podman asks for more than this process may give, where it is confined itself."""


@functools.cache
def has_docker_engine() -> bool:
    return shutil.which("docker") is not None and not subprocess.run(["docker", "info"], capture_output=True).returncode


def make_settings(kind: str) -> SandboxSettings:
    if kind == "bubblewrap":
        return BubblewrapSandbox(output_limit_bytes=OUTPUT_LIMIT_BYTES)
    if kind == "bubblewrap-no-limits":
        return BubblewrapSandbox(output_limit_bytes=OUTPUT_LIMIT_BYTES, limits="none")
    if kind == "podman":
        if shutil.which("podman") is None:
            pytest.skip("podman is not installed: its contract is not tried")
        runtime = "runc" if shutil.which("runc") else None
        return PodmanSandbox(output_limit_bytes=OUTPUT_LIMIT_BYTES, runtime=runtime, options=ULIMITS)
    if kind == "docker":
        if not has_docker_engine():
            pytest.skip("no docker engine answers: its contract is not tried")
        return DockerSandbox(output_limit_bytes=OUTPUT_LIMIT_BYTES)
    return UnsafeProcessSandbox(output_limit_bytes=OUTPUT_LIMIT_BYTES)


ON_CLUSTER = [pytest.param(f"{kind}-on-cluster", marks=pytest.mark.cluster) for kind in KINDS]
LOCAL = ["memory", "bubblewrap", "bubblewrap-no-limits", "unsafe-process", "podman", "docker"]


@pytest_asyncio.fixture(params=[*LOCAL, *KINDS, *ON_CLUSTER])
async def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[SandboxProvider, Sandbox]]:
    async with start(request, tmp_path_factory, SPEC) as (provider, sandbox):
        yield provider, sandbox


@contextlib.asynccontextmanager
async def start(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]
) -> AsyncIterator[tuple[SandboxProvider, Sandbox]]:
    name = f"{request.node.name.translate(str.maketrans('[', '-', ']'))[:50]}-{uuid.uuid4().hex[:6]}"
    kind = request.param.removesuffix("-on-cluster")
    if kind in KINDS:
        space = request.getfixturevalue("spaces").of(kind) if kind != request.param else None
        limit = {"output_limit_bytes": OUTPUT_LIMIT_BYTES}
        async with cluster_rig(kind, space, **limit) if space else memory_rig(kind, **limit) as rig:
            yield rig.provider, await rig.provider.acquire(rig.spec(name, run_id=RUN_ID, **spec))
        return
    settings = make_settings("unsafe-process" if request.param == "memory" else request.param)
    store = open_store(tmp_path_factory.getbasetemp() / f"store-{request.param}", settings)
    provider: SandboxProvider
    if request.param == "memory":
        provider = MemoryProvider(SandboxLimits(output_limit_bytes=OUTPUT_LIMIT_BYTES))
    else:
        provider = make_provider(settings, store)
    sandbox = await provider.acquire(SandboxSpec(RUN_ID, name, store.ensure_base(), **spec))
    yield provider, sandbox
    await provider.close()


@pytest.fixture
def sandbox(started: tuple[SandboxProvider, Sandbox]) -> Sandbox:
    return started[1]


async def test_a_command_reports_its_code_and_both_outputs(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; cat missing; exit 3")
    assert (result.exit_code, result.text) == (3, "out\n")
    assert "missing" in result.error_text
    assert not result.timed_out


async def test_words_are_run_without_a_shell(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["echo", "$GREETING;", "x"])).text == "$GREETING; x\n"


async def test_the_environment_is_the_images_then_the_sandboxes_then_the_commands(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo $GREETING")).text == "hello\n"
    assert (await sandbox.exec("echo $GREETING", env={"GREETING": "bye"})).text == "bye\n"


async def test_standard_input_arrives_byte_for_byte(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 200
    assert (await sandbox.exec("cat", stdin=data)).stdout == data


async def test_what_one_command_writes_the_next_one_reads(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p a/b && echo one > a/b/file && echo two >> a/b/file")
    assert (await sandbox.exec("cat b/file", cwd="/app/a")).text == "one\ntwo\n"


async def test_a_missing_folder_to_start_in_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.exec("true", cwd="/app/nowhere")
    assert result.exit_code not in (0, 124)


async def test_a_missing_program_is_a_result(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("no-such-program")).exit_code == 127


async def test_a_command_that_takes_too_long_is_ended_and_the_next_one_runs(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo begun; sleep 30", timeout_seconds=1)
    assert (result.exit_code, result.timed_out, result.text) == (124, True, "begun\n")
    assert (await sandbox.exec("echo next")).text == "next\n"


async def test_output_without_end_is_bounded_and_says_so(sandbox: Sandbox) -> None:
    result = await sandbox.exec("yes", timeout_seconds=2)
    assert result.truncated
    assert b"bytes left out" in result.stdout
    assert len(result.stdout) < OUTPUT_LIMIT_BYTES + 100


async def test_output_within_the_bound_is_whole(sandbox: Sandbox) -> None:
    data = os.urandom(OUTPUT_LIMIT_BYTES // 2)
    result = await sandbox.exec("cat", stdin=data)
    assert (result.stdout, result.truncated) == (data, False)


async def test_a_file_goes_in_and_out_exactly(sandbox: Sandbox, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "deep" / "back"
    source.write_bytes(os.urandom(3_000_001))
    source.chmod(0o751)
    await sandbox.upload(source, "/app/new/place/file")
    await sandbox.download("/app/new/place/file", back)
    assert back.read_bytes() == source.read_bytes()
    assert back.stat().st_mode & 0o777 == 0o751


async def test_a_folder_goes_in_and_out_with_modes_and_links(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "run.sh").write_bytes(b"#!/bin/sh\n\x00\xff")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "sub" / "secret").write_bytes(b"s")
    (source / "sub" / "secret").chmod(0o600)
    (source / "link").symlink_to("sub/run.sh")
    await sandbox.upload(source, "/app/tree")
    await sandbox.download("/app/tree", tmp_path / "back")
    back = tmp_path / "back"
    assert sorted(p.relative_to(back).as_posix() for p in back.rglob("*")) == [
        "link",
        "sub",
        "sub/empty",
        "sub/run.sh",
        "sub/secret",
    ]
    assert (back / "sub" / "run.sh").read_bytes() == b"#!/bin/sh\n\x00\xff"
    assert [(back / "sub" / name).stat().st_mode & 0o777 for name in ("run.sh", "secret")] == [0o755, 0o600]
    assert str((back / "link").readlink()) == "sub/run.sh"


async def test_uploading_a_folder_adds_to_one_that_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    await sandbox.exec("mkdir -p tree && echo old > tree/old")
    await sandbox.upload(tmp_path, "/app/tree")
    assert (await sandbox.exec("cat tree/old tree/new")).text == "old\nnew"


async def test_downloading_what_is_not_there_raises(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxTransferError, match="cannot download /app/nothing"):
        await sandbox.download("/app/nothing", tmp_path / "x")
    with pytest.raises(SandboxTransferError, match="cannot upload"):
        await sandbox.upload(tmp_path / "nothing", "/app/x")


async def test_a_released_sandbox_is_lost_and_release_may_be_repeated(sandbox: Sandbox) -> None:
    await sandbox.release()
    await sandbox.release()
    with pytest.raises(SandboxLostError):
        await sandbox.exec("true")


async def test_two_sandboxes_do_not_share_files(started: tuple[SandboxProvider, Sandbox]) -> None:
    provider, first = started
    spec = SandboxSpec(RUN_ID, f"{first.spec.sandbox_id}.second", first.spec.image, workdir="/app")
    second = await provider.acquire(spec)
    await first.exec("echo mine > note")
    assert (await second.exec("cat note")).exit_code == 1


async def test_an_id_that_is_in_use_is_refused(started: tuple[SandboxProvider, Sandbox]) -> None:
    provider, first = started
    with pytest.raises(SandboxStartError):
        await provider.acquire(first.spec)
    assert (await first.exec("echo unharmed")).text == "unharmed\n"


async def test_cancelling_a_command_ends_it(started: tuple[SandboxProvider, Sandbox]) -> None:
    provider, sandbox = started
    if isinstance(provider, MemoryProvider):
        return  # Its commands take no time.
    running = asyncio.create_task(sandbox.exec("echo $$ > pid; exec sleep 60"))
    while (await sandbox.exec("test -s pid")).exit_code != 0:
        await asyncio.sleep(0.02)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    for _ in range(100):
        if (await sandbox.exec("kill -0 $(cat pid)")).exit_code != 0:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the command still runs")


LATE = "sleep 0.5 && echo late > note"
LOOPING = "(while :; do echo late > note; sleep 0.01; done) > /dev/null 2>&1 &"
DAEMONS = {
    "loop": LOOPING,
    "session": f"setsid sh -c '{LOOPING}'",
    "deaf": f"trap '' HUP INT TERM; {LOOPING}",
    "many": "for i in 1 2 3 4 5 6 7 8; do " + LOOPING.removesuffix("&") + " & done",
    "forking": "again() { echo late > note; (again &); }; again > /dev/null 2>&1 &",
}


def in_background(provider: SandboxProvider, command: str) -> str:
    """The double knows no brackets."""
    return f"{command} &" if isinstance(provider, MemoryProvider) else f"({command}) > /dev/null 2>&1 &"


async def test_what_a_command_leaves_in_the_background_lives_on(started: tuple[SandboxProvider, Sandbox]) -> None:
    provider, sandbox = started
    await sandbox.exec(in_background(provider, LATE))
    async with asyncio.timeout(20):
        while (await sandbox.exec("cat note")).text != "late\n":
            await asyncio.sleep(0.1)


async def test_ending_commands_ends_what_they_left_in_the_background_and_nothing_else(
    started: tuple[SandboxProvider, Sandbox],
) -> None:
    provider, sandbox = started
    await sandbox.exec("echo mine > kept")
    await sandbox.exec(in_background(provider, LATE))
    await sandbox.end_commands()
    await sandbox.end_commands()
    await sandbox.exec("sleep 1")
    assert (await sandbox.exec("test -e note")).exit_code == 1
    assert (await sandbox.exec("cat kept")).text == "mine\n"


@pytest.mark.parametrize("daemon", DAEMONS)
async def test_no_kind_of_daemon_outlives_the_end_of_commands(
    started: tuple[SandboxProvider, Sandbox], daemon: str
) -> None:
    provider, sandbox = started
    if isinstance(provider, MemoryProvider):
        return  # It has no processes.
    if isinstance(provider, ProcessProvider) and daemon == "forking":
        return  # It says that it cannot, having nothing that holds processes together.
    await sandbox.exec(DAEMONS[daemon])
    while (await sandbox.exec("test -s note")).exit_code != 0:
        await asyncio.sleep(0.02)
    await sandbox.end_commands()
    await sandbox.exec("rm -f note; sleep 0.2")
    assert (await sandbox.exec("test -e note")).exit_code == 1


async def test_a_command_that_runs_when_commands_are_ended_is_a_killed_one(
    started: tuple[SandboxProvider, Sandbox],
) -> None:
    provider, sandbox = started
    if isinstance(provider, MemoryProvider):
        return  # Its commands take no time.
    running = asyncio.create_task(sandbox.exec("echo begun > pid; sleep 60"))
    while (await sandbox.exec("test -s pid")).exit_code != 0:
        await asyncio.sleep(0.02)
    await sandbox.end_commands()
    assert (await asyncio.wait_for(running, 10)).exit_code == 137


async def test_ending_the_commands_of_a_released_sandbox_is_a_loss(sandbox: Sandbox) -> None:
    await sandbox.release()
    with pytest.raises(SandboxLostError):
        await sandbox.end_commands()


async def test_sweeping_spares_the_living_and_may_be_repeated(started: tuple[SandboxProvider, Sandbox]) -> None:
    provider, sandbox = started
    assert [await provider.sweep(RUN_ID), await provider.sweep(RUN_ID)] == [0, 0]
    assert (await sandbox.exec("echo alive")).text == "alive\n"


READ_ONLY = [kind for kind in LOCAL if kind not in ("memory", "unsafe-process")]
WRITES = """
for place in /app /tmp /logs /tests /solution; do echo x > "$place/file" && cat "$place/file" || exit 1; done
for place in /var /usr / /root; do if echo x > "$place/file"; then echo "$place was written"; fi; done 2> /dev/null
"""


@pytest_asyncio.fixture(params=[*READ_ONLY, *KINDS, *ON_CLUSTER])
async def read_only(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    spec = {**SPEC, "read_only_root": True, "writable_paths": ("/app",)}
    async with start(request, tmp_path_factory, spec) as (_, sandbox):
        yield sandbox


async def test_a_root_that_is_read_only_is_written_where_the_task_says_and_nowhere_else(
    read_only: Sandbox, tmp_path: Path
) -> None:
    result = await read_only.exec(WRITES)
    assert (result.exit_code, result.text) == (0, "x\n" * 5), result.error_text
    (tmp_path / "file").write_text("sent")
    await read_only.upload(tmp_path / "file", "/tests/deep/file")
    assert (await read_only.exec("cat /tests/deep/file")).text == "sent"
    with pytest.raises(SandboxTransferError):
        await read_only.upload(tmp_path / "file", "/var/deep/file")
    await read_only.end_commands()
    assert (await read_only.exec("cat /app/file")).text == "x\n"
