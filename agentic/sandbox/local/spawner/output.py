"""Bounded capture of one output stream: the first half and the last half of the limit are kept."""

LEFT_OUT = b"\n[... %d bytes left out ...]\n"


class Capture:
    """Takes chunks of any size and never holds more than the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    @property
    def is_truncated(self) -> bool:
        return self._left_out > 0

    def feed(self, chunk: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._left_out += excess

    def value(self) -> bytes:
        """What was kept, with a line in between that says how much is missing."""
        middle = LEFT_OUT % self._left_out if self._left_out else b""
        return bytes(self._head) + middle + bytes(self._tail)
