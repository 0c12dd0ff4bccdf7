"""One process of the server: builds its parts, listens, and takes them down in the right order.

Trials and their sandboxes end before connections are closed, so that each client still hears how its trial ended.
"""

import socket
import sys
from pathlib import Path
from typing import NamedTuple, override

import uvicorn

from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.pacing import rare_full_collections
from agentic.rollout.server.app import make_app
from agentic.rollout.server.journal import Journal
from agentic.rollout.server.keys import Keys
from agentic.rollout.server.service import Runner, TrialService
from agentic.rollout.server.settings import ServerSettings
from agentic.rollout.server.tasks import TaskStore
from agentic.rollout.trial import sandboxed_runner

_GRACE_SECONDS = 30
"""How long connections may take to end after their trials have."""

_BACKLOG = 4096
"""Connections that wait to be accepted: workers with thousands of trials come at the same moment."""


class Place(NamedTuple):
    """Where to listen."""

    host: str
    port: int
    certificate: Path | None = None
    private_key: Path | None = None


class _Server(uvicorn.Server):
    """Ends the trials between the signal and the closing of connections."""

    def __init__(self, config: uvicorn.Config, service: TrialService) -> None:
        super().__init__(config)
        self._service = service

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.drain()
        await super().shutdown(sockets)
        await self._service.close()


async def serve(settings: ServerSettings, keys: Keys, place: Place) -> None:
    """Serve until a signal. Raises RolloutConfigError when the address cannot be had, JournalError when the state
    belongs to another server, and what makes sandboxes impossible here."""
    journal = Journal(settings.state_dir / "journal.jsonl")
    listener = listen(place)
    runner = sandboxed_runner(settings.name, settings.store_dir, settings.sandbox, settings.concurrency)
    server = make_server(settings, keys, place, runner, journal)
    scheme = "https" if place.certificate else "http"
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"trial server at {scheme}://{f'[{host}]' if ':' in host else host}:{port}\n")
    sys.stdout.flush()
    with rare_full_collections():
        await server.serve(sockets=[listener])


def make_server(settings: ServerSettings, keys: Keys, place: Place, runner: Runner, journal: Journal) -> uvicorn.Server:
    """A server over these parts, which it closes at its end."""
    tasks = TaskStore(settings.state_dir / "tasks", settings.task_limit_bytes)
    service = TrialService(settings, runner, journal, tasks)
    app = make_app(
        service,
        keys,
        upload_limit_bytes=settings.task_limit_bytes,
        retry_after_seconds=settings.retry_after_seconds,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.private_key,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=75,
        backlog=_BACKLOG,
        ws="none",
    )
    return _Server(config, service)


def listen(place: Place) -> socket.socket:
    """The socket that the server accepts connections from. Raises RolloutConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise RolloutConfigError(
            f"cannot listen at {place.host}:{place.port} ({error.strerror}): name another --host or --port"
        ) from error
    return listener
