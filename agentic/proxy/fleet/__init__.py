"""Several proxy processes behind one agent port and one control port.

Every worker is a whole ProxyServer that owns some of the sessions; `ownership` says which, from the session's name
alone. All of them accept connections, and a request for another's session is forwarded (`forwarding`, `routing`). The
`supervisor` binds the ports, starts the workers and starts a dead one again; it never sees a request, and its end is
theirs.

Invariants:
- a session has exactly one owner, and only the owner touches its state and its journal folder;
- a worker that dies loses nothing that it had acknowledged (with a journal), and no other worker's sessions;
- keys stay good over a restart: the secret is the fleet's, and workers are handed it.
"""

from .supervisor import ProxyFleet

__all__ = ["ProxyFleet"]
