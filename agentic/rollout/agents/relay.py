"""A port on loopback inside a sandbox that leads to the proxy's Unix socket: `relay.py SOCKET`, standard library only.

For agents that speak TCP alone. Prints the port that the kernel chose once it listens, and goes on in the background;
the sandbox's own network holds nothing else, so the port is nobody else's. It passes bytes on as they come and knows
nothing of HTTP or keys. Ended with all other commands of the sandbox before anything is graded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

_CHUNK_BYTES = 65536


def main(arguments: list[str]) -> int:
    """Listen, say where, and serve as a process of its own."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    if os.fork():
        return 0
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # held open, they would keep the command that started us from ending
        os.dup2(nothing, stream)
    asyncio.run(_serve(listener, arguments[0]))
    return 0


async def _serve(listener: socket.socket, path: str) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    await asyncio.start_server(connect, sock=listener)
    await asyncio.Event().wait()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                break
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
