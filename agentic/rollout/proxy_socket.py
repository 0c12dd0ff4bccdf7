"""The only way out of a sandbox: the proxy's agent plane, on a Unix socket that is bound into it, or on a port where
sandboxes are pods.

Owned here: whether there is a way, where it lies, and who can reach it. There is one only for an agent that runs
inside; the sandboxes of the others have no network at all. To pods it is `sandbox.proxy_port` at the address of the
proxy's machine or pod, which their NetworkPolicy opens. To sandboxes of this machine it is a socket in a folder that no
other user can enter, since the socket itself is connectable for everybody: sandboxes have user ids of their own. Its
path follows from the names that it is made for, so that all processes of a run agree on it, and is short: the kernel
takes 107 bytes.

A proxy removes its socket when it stops. What a killed one leaves (Ray always kills its actors) is replaced by the next
proxy of the same names, and removed by the next of any.
"""

import hashlib
import os
import socket
import stat
import tempfile
import time
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from agentic.proxy import ProxySettings
from agentic.rollout.errors import RolloutConfigError
from agentic.rollout.settings import AgentSettings, RolloutSettings
from agentic.rollout.trial import EnvironmentSpec
from agentic.sandbox.settings import KubeSandbox, SandboxSettings

PARENT_INSIDE = "/run/agentic"
"""What is ours inside a sandbox lies below it."""

SOCKET_INSIDE = f"{PARENT_INSIDE}/proxy.sock"
"""Where an agent that runs inside finds the proxy."""

MAX_PATH_BYTES = 107
"""The kernel's bound on a Unix socket's path, its final NUL left out."""

ANY_ADDRESS = "0.0.0.0"

ELSEWHERE = "192.0.2.1"
"""An address of nobody's, kept for documentation."""

_TOOLS_ENVIRONMENT = "agentic.rollout.agents.environment:ToolsEnvironment"

SETTLED_SECONDS = 60.0
"""A socket that refuses connections is left alone while it is younger: its server may be about to listen."""

_PROBE_SECONDS = 1.0


def proxy_settings(rollout: RolloutSettings, sandbox: SandboxSettings, *names: str) -> ProxySettings:
    """The settings to start the proxy of these names with: on a socket too when the agent runs inside, or on the port
    that pods may reach.

    Raises RolloutConfigError when the sandbox cannot take a socket in, no path is short enough, or no port is open.
    """
    if not rollout.agent.runs_inside:
        return rollout.proxy
    if isinstance(sandbox, KubeSandbox):
        return _on_port(rollout, sandbox)
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


def _on_port(rollout: RolloutSettings, sandbox: KubeSandbox) -> ProxySettings:
    """Pods are on other machines: no socket, and an address that is not loopback's. Which one is known where the proxy
    runs (see `advertised`)."""
    proxy = rollout.proxy
    if sandbox.proxy_port is None or proxy.port not in (0, sandbox.proxy_port):
        raise RolloutConfigError(
            f"rollout.agent.kind is {rollout.agent.kind}, which in a pod reaches the proxy at sandbox.proxy_port: that "
            f"is {sandbox.proxy_port}, and rollout.proxy.port is {proxy.port}; set the first, the second to it or to 0"
        )
    host = ANY_ADDRESS if ip_address_of(proxy.host).is_loopback else proxy.host
    return proxy.model_copy(update={"host": host, "port": sandbox.proxy_port, "unix_socket": None})


def advertised(settings: ProxySettings) -> ProxySettings:
    """The same, and where the proxy listens on every address, the one of this machine or pod that agents are told.
    Call it where the proxy runs."""
    if settings.advertised_host is not None or not ip_address_of(settings.host).is_unspecified:
        return settings
    return settings.model_copy(update={"advertised_host": own_address()})


def own_address() -> str:
    """That from which this machine or pod reaches others. Nothing is sent: a datagram socket only picks its address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
        except OSError as error:
            raise RolloutConfigError(
                f"no address here that pods could reach ({error.strerror}): set rollout.proxy.advertised_host"
            ) from error
        return str(probe.getsockname()[0])


def ip_address_of(host: str) -> IPv4Address | IPv6Address:
    """Of an address as text; a name is an address that is neither loopback's nor every one."""
    if host == "localhost":
        return IPv4Address("127.0.0.1")
    try:
        return ip_address(host)
    except ValueError:
        return IPv4Address(ELSEWHERE)


def sandbox_environment(agent: AgentSettings, proxy: ProxySettings) -> EnvironmentSpec:
    """The environment of a trial of this agent, whose model answers at this proxy."""
    kwargs: dict[str, Any] = {}
    if agent.runs_inside and proxy.unix_socket is not None:
        kwargs["sockets"] = {str(proxy.unix_socket): SOCKET_INSIDE}
    if agent.leaves_logs:
        return EnvironmentSpec(import_path=_TOOLS_ENVIRONMENT, kwargs={**kwargs, "tools": agent.tools})
    return EnvironmentSpec(kwargs=kwargs)


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
