"""Keys of sessions: HMAC over session, model and expiry, so nothing is stored and nothing can be listed.

A key reads `<session>.<model, base64>.<expiry in unix seconds, 0: never>.<HMAC>`. Whoever has the secret can check it
without a table: another process of a fleet, or the same proxy after a restart.
"""

import hashlib
import hmac
import os
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

from .errors import JournalError, Unauthorized

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyClaims:
    """What a key opens."""

    session_id: str
    model: str
    expires_at: int
    """Unix seconds; 0: never."""


class SessionKeys:
    """Makes and checks keys with a secret that never leaves the proxy's processes."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(SECRET_BYTES)

    def key(self, claims: KeyClaims) -> str:
        """The key that opens this, the same each time."""
        model = urlsafe_b64encode(claims.model.encode()).decode().rstrip("=")
        text = f"{claims.session_id}.{model}.{claims.expires_at}"
        return f"{text}.{self._code(text)}"

    def check(self, key: str) -> KeyClaims:
        """What a key opens; Unauthorized for none, a foreign or an expired one. Compares in constant time."""
        if not key:
            raise Unauthorized("no key: send the session's key as a bearer token or as x-api-key")
        text, _, code = key.rpartition(".")
        if not hmac.compare_digest(self._code(text).encode(), code.encode("utf-8", "replace")):
            raise Unauthorized("this key opens no session of this proxy: use the api_key that opening the session gave")
        session_id, model, expires = text.rsplit(".", 2)
        claims = KeyClaims(session_id, urlsafe_b64decode(model + "=" * (-len(model) % 4)).decode(), int(expires))
        if claims.expires_at and time.time() > claims.expires_at:
            ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claims.expires_at))
            raise Unauthorized(f"this key expired at {ended}: open another session")
        return claims

    def _code(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def session_of_key(key: str) -> str | None:
    """The session that a key names, unchecked: enough to find who can check it."""
    parts = key.rsplit(".", 3)
    return parts[0] or None if len(parts) == 4 else None


def kept_secret(directory: Path) -> bytes:
    """The secret that lies beside a journal, made by whoever comes first: keys outlive the process with it."""
    path = directory / "keys.secret"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            _create(path, secrets.token_bytes(SECRET_BYTES))
        secret = path.read_bytes()
    except OSError as error:
        raise JournalError(f"cannot keep {path}: {error.strerror}: free space or change journal_directory") from error
    if len(secret) != SECRET_BYTES:
        raise JournalError(f"{path} has {len(secret)} bytes instead of {SECRET_BYTES}: remove it, and keys with it")
    return secret


def _create(path: Path, secret: bytes) -> None:
    # Linked into place, so that of two processes both read the one that came first, whole.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()
