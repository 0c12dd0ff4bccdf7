"""Runs a command beside a port on loopback that leads to a Unix socket: `client_bridge.py PORT SOCKET COMMAND...`.

Started inside a network namespace without any other way out; ends with the command's exit code.
"""

import asyncio
import contextlib
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        writer.close()


async def _main(port: int, socket: str, command: list[str]) -> int:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # a connection that the end of the command cuts
            far_reader, far_writer = await asyncio.open_unix_connection(socket)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    await asyncio.start_server(connect, "127.0.0.1", port)
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
