"""The exec server: who may use it, and what a broken connection does not break."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from exec_server_rig import ExecServerRig, KeyWords

from agentic.sandbox.errors import SandboxLostError, SandboxStartError
from agentic.sandbox.kube.execution import ExecRequest
from agentic.sandbox.kube.manifests import PROGRAM
from agentic.sandbox.kube.transfers import Transfers

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="process 1 of a sandbox needs bubblewrap")

KEPT_BYTES = 4 << 20
"""That a server keeps of a command's output, unacknowledged."""
LARGE_BYTES = 100 * 1000 * 1000


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[ExecServerRig]:
    async with ExecServerRig() as rig:
        yield rig


@dataclass
class Cable:
    """A TCP connection that can be cut, in front of a server."""

    target: int
    port: int = 0
    is_cut: bool = False
    cut_after_bytes: int | None = None
    cuts: int = 0
    swallowed: list[int] = field(default_factory=list)
    buffer_bytes: int = 0
    """So much of what the server sends next stays on the way, until nothing has come for a moment; then it is lost."""
    _ends: list[asyncio.StreamWriter] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> "Cable":
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.append(writer)
        if self.is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._ends.append(back)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer, counts=True))

    async def _swallow(self, source: asyncio.StreamReader) -> int:
        swallowed = 0
        with contextlib.suppress(TimeoutError):
            while swallowed < self.buffer_bytes:
                async with asyncio.timeout(0.5):
                    swallowed += len(await source.read(65536)) or self.buffer_bytes
        return swallowed

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, counts: bool = False) -> None:
        seen = 0
        if counts and self.buffer_bytes:
            self.swallowed.append(await self._swallow(source))
            self.buffer_bytes = 0
            self.cut()
            return
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
            seen += len(data)
            if counts and self.cut_after_bytes is not None and seen > self.cut_after_bytes:
                self.cut()
        target.write_eof()

    def cut(self) -> None:
        self.cuts += 1
        for writer in self._ends:
            writer.transport.abort()
        self._ends.clear()

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


def ask(command: str, timeout_seconds: float = 20.0, **more: object) -> ExecRequest:
    return ExecRequest(command, timeout_seconds, **more)  # type: ignore[arg-type]


async def test_nobody_is_served_without_the_key_and_the_first_key_stays(rig: ExecServerRig) -> None:
    address = f"http://127.0.0.1:{rig.port}"
    async with aiohttp.ClientSession() as stranger:
        for method, path in [("GET", "/"), ("POST", "/commands/x"), ("GET", "/commands/x"), ("DELETE", "/commands")]:
            assert (await stranger.request(method, address + path)).status == 401
        channel = await rig.connect()
        assert (await channel.run(ask("echo mine"))).text == "mine\n"
        for key in ("", "0" * 64):
            headers = {"Authorization": f"Bearer {key}"}
            assert (await stranger.post(f"{address}/commands/x", headers=headers)).status == 401
    with pytest.raises(SandboxStartError, match="there is a key already"):
        await rig.connect()
    assert (await channel.run(ask("env"))).text.count("AGENTIC_EXEC") == 1


async def test_a_command_goes_on_when_its_connection_breaks_and_nothing_of_it_is_lost(rig: ExecServerRig) -> None:
    channel = await rig.connect()
    async with Cable(rig.port) as cable:
        channel.move(f"http://127.0.0.1:{cable.port}")
        running = asyncio.create_task(channel.run(ask("for i in 1 2 3 4; do echo $i; sleep 0.5; done; exit 7")))
        for _ in range(3):
            await asyncio.sleep(0.5)
            cable.cut()
        result = await running
    assert (result.exit_code, result.text, cable.cuts > 2) == (7, "1\n2\n3\n4\n", True)


async def test_a_stream_cut_many_times_is_still_exact(rig: ExecServerRig, tmp_path: Path) -> None:
    channel, transfers = await rig.connect(), Transfers()
    await channel.run(ask("head -c 30000000 /dev/urandom > /app/file"))
    async with Cable(rig.port, cut_after_bytes=3_000_000) as cable:
        channel.move(f"http://127.0.0.1:{cable.port}")
        await transfers.download(channel, "/app/file", tmp_path / "back", limit_bytes=1 << 30)
        assert cable.cuts >= 5
    digest = hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest()
    channel.move(f"http://127.0.0.1:{rig.port}")
    assert (await channel.run(ask("sha256sum < /app/file"))).text.split()[0] == digest
    transfers.close()


async def test_what_is_lost_in_the_buffers_of_a_connection_is_sent_again_however_much(
    rig: ExecServerRig, tmp_path: Path
) -> None:
    channel, transfers = await rig.connect(), Transfers()
    await channel.run(ask("head -c 60000000 /dev/urandom > /app/file"))
    async with Cable(rig.port, buffer_bytes=50_000_000) as cable:
        channel.move(f"http://127.0.0.1:{cable.port}")
        await transfers.download(channel, "/app/file", tmp_path / "back", limit_bytes=1 << 30)
    (swallowed,) = cable.swallowed
    assert 3_000_000 < swallowed < 4_300_000, "the command waited for us to have it"
    channel.move(f"http://127.0.0.1:{rig.port}")
    digest = hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest()
    assert (await channel.run(ask("sha256sum < /app/file"))).text.split()[0] == digest
    transfers.close()


async def read_until_silent(content: aiohttp.StreamReader) -> int:
    seen = 0
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.5):
                seen += len(await content.readany())
    return seen


async def test_a_command_waits_for_its_client_to_say_that_it_has_the_output(rig: ExecServerRig) -> None:
    key = "k" * 64
    await KeyWords(rig.socket).run(ExecRequest([PROGRAM, "key"], 30.0, stdin=key.encode()))
    address, headers = f"http://127.0.0.1:{rig.port}/commands/one", {"Authorization": f"Bearer {key}"}
    spec = json.dumps({"mark": "one", "words": ["head", "-c", "9000000", "/dev/zero"]}).encode() + b"\n"
    async with aiohttp.ClientSession(headers=headers) as client, client.post(address, data=spec) as stream:
        first = await read_until_silent(stream.content)
        assert KEPT_BYTES - 100_000 < first <= KEPT_BYTES
        for place in ("", "-", str(first + 1)):
            assert (await client.post(f"{address}/seen?place={place}")).status == 400
        for place in (first - 1000, 0, first - 1000):
            assert (await client.post(f"{address}/seen?place={place}")).status == 204
        second = await read_until_silent(stream.content)
        assert KEPT_BYTES - 100_000 < second + 1000 <= KEPT_BYTES
        assert (await client.get(f"{address}?from={first - 1001}")).status == 410
        assert (await client.post(f"{address.replace('one', 'none')}/seen?place=0")).status == 404


async def test_input_that_was_cut_is_a_loss_and_never_a_short_input(rig: ExecServerRig) -> None:
    channel = await rig.connect()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"begin"
        await asyncio.sleep(1)
        cable.cut()
        yield b"end"

    async with Cable(rig.port) as cable:
        channel.move(f"http://127.0.0.1:{cable.port}")
        with pytest.raises(SandboxLostError):
            await channel.run(ask("cat > /app/got && echo done > /app/done", stdin=slowly()))
    channel.move(f"http://127.0.0.1:{rig.port}")
    assert (await channel.run(ask("sleep 0.3; test -e /app/done"))).exit_code == 1


async def test_a_server_that_is_gone_is_a_loss(rig: ExecServerRig) -> None:
    channel = await rig.connect()
    channel.reconnect_seconds = 0.5
    running = asyncio.create_task(channel.run(ask("sleep 30")))
    await asyncio.sleep(0.3)
    rig.kill()
    with pytest.raises(SandboxLostError, match="s1 is lost: out of reach"):
        await running
    with pytest.raises(SandboxLostError):
        await channel.run(ask("true"))


async def test_large_files_go_in_and_out_exactly(rig: ExecServerRig, tmp_path: Path) -> None:
    channel, transfers = await rig.connect(), Transfers()
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1_000_000) * (LARGE_BYTES // 1_000_000))
    await transfers.upload(channel, source, "/app/file")
    await transfers.download(channel, "/app/file", tmp_path / "back", limit_bytes=1 << 30)
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    transfers.close()


async def test_orphans_do_not_stay_as_zombies(rig: ExecServerRig) -> None:
    channel = await rig.connect()
    await channel.run(ask("for i in $(seq 20); do (setsid true &); done; sleep 0.3"))
    assert (await channel.run(ask("ps -eo stat | grep -c ^Z"))).text == "0\n"
