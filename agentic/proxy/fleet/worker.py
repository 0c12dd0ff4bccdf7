"""One worker of a fleet, as a process: `python -m agentic.proxy.fleet.worker`, started by the supervisor only.

It reads what it is to do from its standard input, recovers its sessions, listens, and writes one line of JSON to what
was its standard output: `{}`, or `{"error": ...}` when it cannot work. What libraries print goes to standard error:
nobody reads the pipe after the report. It stops when its standard input ends, which is also
what the supervisor's death looks like; a thread sees to that, so a blocked event loop cannot outlive the supervisor.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

from ..errors import ProxyError
from ..keys import SessionKeys
from ..loop import run
from ..options import log_to_stderr
from ..server import ProxyServer, Share
from .boot import Boot, read_boot
from .forwarding import Peers, socket_path
from .ownership import slot_directory
from .routing import Router

type Report = Callable[[dict[str, str]], None]

LAST_SECONDS = 5.0
"""How long a worker may take to stop before it is ended hard."""


async def work(boot: Boot, report: Report, on_end: Callable[[Callable[[], object]], None]) -> None:
    """Serve until told to stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    on_end(lambda: loop.call_soon_threadsafe(stopping.set))
    peers = Peers(boot.folder, boot.slots, boot.settings)
    server = make_server(boot, peers)
    try:
        await server.start()
        report({})
        await stopping.wait()
    finally:
        await server.stop()
        await peers.close()


def make_server(boot: Boot, peers: Peers) -> ProxyServer:
    """The worker's own server, on the fleet's sockets and on its private ones."""
    router = Router(peers, boot.slot, SessionKeys(boot.secret))
    share = Share(
        agent_url=boot.agent_url,
        control_url=boot.control_url,
        secret=boot.secret,
        agent_sockets=[socket.socket(fileno=number) for number in boot.agent_sockets],
        control_sockets=[socket.socket(fileno=number) for number in boot.control_sockets],
        agent_middleware=router.agent,
        control_middleware=router.control,
        private_agent_socket=socket_path(boot.folder, "agent", boot.slot),
        private_control_socket=socket_path(boot.folder, "control", boot.slot),
        sampling_state=boot.folder / "sampling.json",
    )
    journal = boot.settings.journal_directory
    own = None if journal is None else slot_directory(journal, boot.slot)
    settings = boot.settings.model_copy(update={"journal_directory": own, "unix_socket": None})
    return ProxyServer(settings, boot.make_engine(), boot.make_renderer(), control_key=boot.control_key, share=share)


def take_report() -> Report:
    """How the supervisor is told how the start went; standard output is standard error from now on."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(message: dict[str, str]) -> None:
        os.write(descriptor, (json.dumps(message) + "\n").encode())

    return report


def watch_supervisor(stop: Callable[[], object]) -> None:
    """Stop when standard input ends; end hard if stopping takes too long."""

    def watch() -> None:
        sys.stdin.buffer.read()
        stop()
        threading.Event().wait(LAST_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="supervisor-watch").start()


def main() -> int:
    """Run; 78 for what another start will not mend."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the supervisor decides.
    report = take_report()
    boot = read_boot(sys.stdin.buffer)
    log_to_stderr(boot.log_level)
    try:
        run(work(boot, report, watch_supervisor))
    except (ProxyError, ValueError) as error:
        report({"error": str(error)})
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
