"""TLS to the API server, with connections after the first resumed.

A command in a pod needs a connection of its own, and a full handshake costs both sides a signature and its check. So
each connection presents the newest ticket that the same server gave an earlier one (RFC 8446, 2.2); a server that does
not know it any more falls back to a full handshake by itself. Certificates were verified in the handshake that is
resumed, by this very context: authorities, host name and client certificate never differ between the two.
"""

import contextlib
import ssl
from typing import override


class ResumingContext(ssl.SSLContext):
    """A client's context that remembers, by server name, the session to go on with."""

    def __init__(self, protocol: int = ssl.PROTOCOL_TLS_CLIENT) -> None:
        """`SSLContext.__new__` has taken the protocol."""
        self._sessions: dict[str | None, ssl.SSLSession] = {}
        self._newest: dict[str | None, ssl.SSLObject] = {}

    @override
    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = server_hostname.decode() if isinstance(server_hostname, bytes) else server_hostname
        made = super().wrap_bio(incoming, outgoing, server_side, name, session or self._known(name))
        self._newest[name] = made
        return made

    def _known(self, name: str | None) -> ssl.SSLSession | None:
        """Tickets come after the handshake, so the connection before is asked when the next one is made."""
        before = self._newest.get(name)
        with contextlib.suppress(ValueError):  # So says a connection that is still in its handshake.
            session = before.session if before is not None else None
            if session is not None and session.has_ticket:
                self._sessions[name] = session
        return self._sessions.get(name)


def make_tls(
    authority: str | None, certificate: str | None, key: str | None, *, is_verified: bool = True
) -> ssl.SSLContext:
    """A client's context: these authorities or the system's, and our certificate if there is one."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        context.load_verify_locations(cafile=authority)
    else:
        context.load_default_certs()
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context
