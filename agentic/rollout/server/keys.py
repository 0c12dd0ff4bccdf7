"""Who may use the server: bearers of one of its keys, compared in constant time.

A bearer is known by its key's owner name, the beginning of the key's digest: what it orders is its own.
"""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from agentic.rollout.errors import RolloutConfigError

MIN_KEY_CHARACTERS = 16

ANYBODY = ""
"""The owner of what is ordered from a server without keys."""

_OWNER_CHARACTERS = 16


class Keys:
    """The keys of a server; without any, everybody who reaches it may use it."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Raises RolloutConfigError for a key that could be guessed."""
        if any(len(key) < MIN_KEY_CHARACTERS for key in keys):
            raise RolloutConfigError(
                f"a key of the trial server has fewer than {MIN_KEY_CHARACTERS} characters: make one with "
                "`openssl rand -hex 32`"
            )
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner_of(self, authorization: str | None) -> str | None:
        """Who an `Authorization` header opens the server for; None: for nobody. Takes as long for a wrong key as for a
        right one."""
        if not self._digests:
            return ANYBODY
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:_OWNER_CHARACTERS] if scheme.lower() == "bearer" and any(matches) else None


def read_keys(path: Path | None, variable: str | None) -> Keys:
    """Keys of a file, one a line, and of an environment variable's value. A file without one is refused: no key at all
    would let everybody in."""
    try:
        lines = path.read_text().splitlines() if path is not None else []
    except OSError as error:
        raise RolloutConfigError(f"the keys in {path} cannot be read: {error.strerror}") from error
    if path is not None and not any(line.strip() for line in lines):
        raise RolloutConfigError(f"{path} holds no key: write one into it, such as of `openssl rand -hex 32`")
    return Keys([key for line in [*lines, variable or ""] if (key := line.strip())])
