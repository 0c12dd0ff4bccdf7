"""What a component is, and what it is started with; the table itself is in components.py."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed import pki
from testbed.errors import StartError
from testbed.layout import Layout
from testbed.tools import Toolbox

_PROBE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Machine:
    """What a component is started with."""

    layout: Layout
    tools: Toolbox

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """As the administrator; the caller is in the cluster's network."""
        command = [str(self.tools.path("kubectl")), f"--kubeconfig={self.layout.kubeconfig(pki.ADMIN)}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no output"]
            raise StartError(f"kubectl {' '.join(arguments[:3])} ended with {done.returncode}: {lines[-1]}")
        return done.stdout

    def containerd(self, *arguments: str) -> str:
        """By ctr, in the namespace of containers that belong to Kubernetes."""
        command = ["ctr", f"--address={self.layout.containerd_socket}", "--namespace=k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartError(f"ctr {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


def _nothing(machine: Machine) -> None:
    """Most rows need nothing beforehand."""


@dataclass(frozen=True, slots=True)
class Component:
    """One daemon of the cluster."""

    name: str
    command: Callable[[Machine], Sequence[str]]
    is_ready: Callable[[Machine], bool]
    tools: tuple[str, ...] = ()
    prepare: Callable[[Machine], None] = _nothing
    """Before the start, each time."""
    complete: Callable[[Machine], None] = _nothing
    """Once it is ready."""
    ready_seconds: float = 90.0


def wait_until_ready(component: Component, machine: Machine, is_alive: Callable[[], bool]) -> None:
    """Raises as soon as the process has ended, or after the component's time."""
    deadline = time.monotonic() + component.ready_seconds
    while not component.is_ready(machine):
        if not is_alive():
            raise StartError(f"{component.name} ended while it started")
        if time.monotonic() > deadline:
            raise StartError(f"{component.name} was not ready after {component.ready_seconds:.0f} s")
        time.sleep(_PROBE_SECONDS)
