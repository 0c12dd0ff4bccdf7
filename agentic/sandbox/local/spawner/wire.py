"""Frames between the spawner and its owner: a JSON header and a raw body, each with its length in front.

Owned here: the byte layout and the names of operations and events. Both sides import this module, and the spawner runs
without site-packages, so only the standard library is used. Bodies carry standard input and captured output exactly,
byte by byte.
"""

import json
import struct
from typing import Any

LENGTHS = struct.Struct("!II")
"""Length of the header and of the body, in bytes."""

Header = dict[str, Any]

START, EXEC, CANCEL, END, RELEASE = "start", "exec", "cancel", "end", "release"
"""Requests: each carries `id` (unique for the connection) and `sandbox`."""
STARTED, DONE, ENDED, RELEASED, FAILED, LOST = "started", "done", "ended", "released", "failed", "lost"
"""Replies carry the `id` they answer; `lost` without one says that a sandbox died by itself. `ended` says by `is_clear`
whether nothing is left that runs: killing takes its time, and the spawner does not wait."""


def encode(header: Header, body: bytes = b"") -> bytes:
    """One frame, ready to be written."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(head), len(body)) + head + body


class Decoder:
    """Turns chunks, cut anywhere, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[Header, bytes]]:
        """The frames completed by this chunk, in order."""
        self._buffer += chunk
        frames: list[tuple[Header, bytes]] = []
        while len(self._buffer) >= LENGTHS.size:
            head_length, body_length = LENGTHS.unpack_from(self._buffer)
            end = LENGTHS.size + head_length + body_length
            if len(self._buffer) < end:
                break
            head_end = LENGTHS.size + head_length
            frames.append((json.loads(self._buffer[LENGTHS.size : head_end]), bytes(self._buffer[head_end:end])))
            del self._buffer[:end]
        return frames
