"""Where everything of one test cluster lies, and its addresses. Pure data; makes nothing.

Two roots outlive the cluster's processes: `cache`, worth keeping (binaries, images), and `state`, deleted by `down`.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

NAME_VARIABLE = "TESTBED_NAME"
"""A second cluster takes another name, and with it another network, state and control group. Two checkouts never share
one, since each would take down what the other's sources made."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One cluster on this machine."""

    name: str
    cache: Path
    state: Path
    """Of the cluster's life; on a file system that overlayfs can write to."""
    sockets: Path
    """Apart from `state`, since a socket's path has at most 107 bytes."""
    node: str = "node-1"
    host_ip: str = "10.244.0.1"
    """The bridge's address: the node's own, and the one under which pods reach servers that tests start."""
    pod_network: str = "10.244.0.0/20"
    first_pod_ip: str = "10.244.0.10"
    service_network: str = "10.96.0.0/16"
    service_ip: str = "10.96.0.1"
    """First address of the service network: the API server, seen from pods."""
    api_port: int = 6443

    @classmethod
    def of_this_machine(cls) -> Self:
        """The checkout's cluster, or the one that `TESTBED_NAME` names."""
        checkout = hashlib.sha256(str(Path(__file__).resolve()).encode()).hexdigest()
        name = os.environ.get(NAME_VARIABLE, f"agentic-testbed-{checkout[:6]}")
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(
            name=name, cache=caches / "agentic-rl/cluster", state=Path("/var/lib") / name, sockets=Path("/run") / name
        )

    @property
    def registry(self) -> str:
        """Plain HTTP, under one address for the node, its pods and tests."""
        return f"{self.host_ip}:5000"

    @property
    def builder(self) -> str:
        """Where BuildKit listens; without TLS, as nothing else is in this network."""
        return f"{self.host_ip}:1234"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def containerd_socket(self) -> Path:
        return self.sockets / "containerd.sock"

    @property
    def network_namespace(self) -> Path:
        return Path("/run/netns") / self.name

    def kubeconfig(self, user: str) -> Path:
        return self.state / f"{user}.kubeconfig"
