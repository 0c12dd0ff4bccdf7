"""The only way out of a sandbox: the proxy's agent plane on a Unix socket that is bound into it.

Owned here: whether there is a socket, where it lies, and who can reach it. There is one only for an agent that runs
inside; the sandboxes of the others have no network at all. On the host it lies in a folder that no other user can
enter, since the socket itself is connectable for everybody: sandboxes have user ids of their own. Its path follows from
the names that it is made for, so that all processes of a run agree on it, and is short: the kernel takes 107 bytes.

A proxy removes its socket when it stops. What a killed one leaves (Ray always kills its actors) is replaced by the next
proxy of the same names, and removed by the next of any.
"""

import hashlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path

from agentic.proxy import ProxySettings
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.settings import AgentSettings, RolloutSettings
from agentic.rollout.trial import EnvironmentSpec
from agentic.sandbox.settings import SandboxSettings

PARENT_INSIDE = "/run/agentic"
"""What is ours inside a sandbox lies below it."""

SOCKET_INSIDE = f"{PARENT_INSIDE}/proxy.sock"
"""Where an agent that runs inside finds the proxy."""

MAX_PATH_BYTES = 107
"""The kernel's bound on a Unix socket's path, its final NUL left out."""

SETTLED_SECONDS = 60.0
"""A socket that refuses connections is left alone while it is younger: its server may be about to listen."""

_PROBE_SECONDS = 1.0


def proxy_settings(rollout: RolloutSettings, sandbox: SandboxSettings, *names: str) -> ProxySettings:
    """The settings to start the proxy of these names with: on a socket too when the agent runs inside.

    Raises RolloutConfigError when the sandbox cannot take a socket in, or no path is short enough.
    """
    if not rollout.agent.runs_inside:
        return rollout.proxy
    if sandbox.provider == "unsafe-process":
        raise RolloutConfigError(
            f"rollout.agent.kind is {rollout.agent.kind} but sandbox.provider=unsafe-process binds no socket: choose "
            "another provider, or an agent that runs outside such as shell"
        )
    path = rollout.proxy.unix_socket or _folder() / f"{hashlib.sha256('\0'.join(names).encode()).hexdigest()[:16]}.sock"
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise RolloutConfigError(
            f"the proxy's socket {path} has a path of more than {MAX_PATH_BYTES} bytes: set rollout.proxy.unix_socket "
            "or TMPDIR to something shorter"
        )
    return rollout.proxy.model_copy(update={"unix_socket": path})


def sandbox_environment(agent: AgentSettings, proxy: ProxySettings) -> EnvironmentSpec:
    """The environment of a trial of this agent, whose model answers at this proxy."""
    if not agent.runs_inside:
        return EnvironmentSpec()
    return EnvironmentSpec(kwargs={"sockets": {str(proxy.unix_socket): SOCKET_INSIDE}})


def prepare_folder(path: Path | None) -> None:
    """Before a proxy listens at `path`: make our folder, and remove what killed proxies left in it. A socket that was
    placed by hand is its owner's business.

    Raises RolloutConfigError when others could reach what is in the folder.
    """
    folder = _folder()
    if path is None or path.parent != folder:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise RolloutConfigError(
            f"{folder} is no folder that only this user can enter: remove it, or set rollout.proxy.unix_socket"
        )
    settled = time.time() - SETTLED_SECONDS
    for other in folder.glob("*.sock"):
        if other.lstat().st_mtime < settled and _is_refusing(other):
            other.unlink(missing_ok=True)


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"agentic-{os.geteuid()}"


def _is_refusing(path: Path) -> bool:
    """Whether it is a socket that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
