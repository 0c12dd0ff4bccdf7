"""What a worker is told when it starts, and how: pickled, over its standard input, by the supervisor alone.

The factories are called in the worker, so they have to be importable there: functions and classes of modules (not of a
script that was started as `__main__`), or `functools.partial` of them.
"""

import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..engines.base import Engine
from ..errors import ProxyError
from ..renderers.base import Renderer
from ..settings import ProxySettings

LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Boot:
    """One worker of a fleet."""

    slot: int
    slots: int
    folder: Path
    """Where the private sockets lie."""
    settings: ProxySettings
    """Those of the fleet; the journal's folder is the slot's own."""
    make_engine: Callable[[], Engine]
    make_renderer: Callable[[], Renderer]
    secret: bytes
    """Of the sessions' keys."""
    control_key: str
    agent_url: str
    """Where agents are told to reach the worker's sessions."""
    control_url: str
    agent_sockets: tuple[int, ...]
    """Descriptors of listening sockets, inherited."""
    control_sockets: tuple[int, ...]
    held: tuple[int, ...]
    """Descriptors that are inherited for being open: the journal folder's lock, until the last worker has ended."""
    log_level: int
    """From where on the supervisor logs; so do its workers."""
    search_path: list[str] = field(default_factory=lambda: list(sys.path))
    """Where the factories' modules are found."""


def encode_boot(boot: Boot) -> bytes:
    """As it is written to a worker; the search path comes first, since reading the rest imports modules."""
    try:
        parts = [pickle.dumps(boot.search_path), pickle.dumps(boot)]
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ProxyError(
            f"make_engine and make_renderer cannot be sent to another process ({error}): use functions of a module"
        ) from error
    return b"".join(LENGTH.pack(len(part)) + part for part in parts)


def read_boot(stream: BinaryIO) -> Boot:
    """What the supervisor sent."""
    known = set(sys.path)
    sys.path.extend(path for path in _read_part(stream) if path not in known)
    boot: Boot = _read_part(stream)
    return boot


def _read_part(stream: BinaryIO) -> Any:
    (length,) = LENGTH.unpack(stream.read(LENGTH.size))
    return pickle.loads(stream.read(length))
