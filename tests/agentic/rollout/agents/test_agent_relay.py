"""The relay as the process that sandboxes run, before a server on a Unix socket."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, web

from agentic.rollout.agents import relay


@contextlib.asynccontextmanager
async def relayed(socket):
    """The port of a relay; it and what it left running are ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", relay.__file__, str(socket)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()  # ends, though the relay goes on: it holds no stream open
    assert process.returncode == 0
    try:
        yield int(output)
    finally:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(socket) in (folder / "cmdline").read_text():
                    os.kill(int(folder.name), signal.SIGKILL)


async def test_bytes_reach_the_socket_and_come_back_as_they_come(tmp_path):
    more = asyncio.Event()

    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(await request.read())
        await more.wait()
        await response.write(b"end")
        return response

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/echo", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    body = os.urandom(1 << 20)
    try:
        async with (
            relayed(tmp_path / "s") as port,
            ClientSession() as http,
            http.post(f"http://127.0.0.1:{port}/echo", data=body) as response,
        ):
            assert await response.content.readexactly(len(body)) == body
            more.set()
            assert await response.read() == b"end"
    finally:
        await runner.cleanup()


async def test_a_socket_that_nobody_serves_is_a_closed_connection(tmp_path):
    async with relayed(tmp_path / "s") as port, ClientSession() as http:
        with pytest.raises(ClientError):
            await http.get(f"http://127.0.0.1:{port}/")
