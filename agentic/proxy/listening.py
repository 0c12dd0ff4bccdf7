"""Sockets that a proxy listens on, for one process and for a fleet's supervisor alike."""

import errno
import socket
from pathlib import Path

BACKLOG = 1024


def listen_tcp(host: str, port: int, shared: bool = False) -> socket.socket:
    """Listen at an address; a shared port may be listened on several times."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)


def listen_unix(path: Path) -> socket.socket:
    """Listen at a socket file; one that a killed process left is replaced, one that somebody listens on is an OSError.

    The file is there until whoever got this socket unlinks it.
    """
    if path.is_socket():
        if _is_listened_on(path):
            raise OSError(errno.EADDRINUSE, f"another process listens on {path}")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def url_of(host: str, port: int) -> str:
    """Where something listens."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True
