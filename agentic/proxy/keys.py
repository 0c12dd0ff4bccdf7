"""Keys of sessions: HMAC over the session id, so nothing is stored and nothing can be listed."""

import hashlib
import hmac
import secrets


class SessionKeys:
    """Makes and checks keys of the form `<session id>.<hmac>` with a secret of this process."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def key(self, session_id: str) -> str:
        """The key of a session."""
        return f"{session_id}.{self._code(session_id)}"

    def owner(self, key: str) -> str | None:
        """The session that a key belongs to, or None for a forged one; compares in constant time."""
        session_id, _, code = key.rpartition(".")
        good = hmac.compare_digest(self._code(session_id).encode(), code.encode("utf-8", "replace"))
        return session_id if good else None

    def _code(self, session_id: str) -> str:
        text = session_id.encode("utf-8", "replace")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


def session_of_key(key: str) -> str | None:
    """The session that a key names, unchecked: enough to find who can check it."""
    return key.rpartition(".")[0] or None
