"""Bringing the whole cluster up and taking it down; both safe to repeat, and to go on with after a kill.

`up` starts what does not run and leaves alone what does. A cluster that other sources of this folder made is taken down
first. `down` finds what belongs to the cluster by its records, its control group and its state, so that it works on
half a cluster too, and leaves no process, mount, control group or namespace.
"""

import hashlib
import inspect
import shutil
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

from agentic.files import locked_folder
from testbed import cgroups, components, controllers, fake_nodes, layout, machine, network, node, pki, processes
from testbed.component import Component, Machine, wait_until_ready
from testbed.components import COMPONENTS
from testbed.errors import StartError
from testbed.layout import Layout
from testbed.processes import Daemons
from testbed.tools import TOOLS, Say, Toolbox, digest


class Cluster:
    """One cluster on this machine, by its layout."""

    def __init__(self, where: Layout, say: Say) -> None:
        self.layout = where
        self._say = say
        self._machine = Machine(where, Toolbox(where))
        self._daemons = Daemons(where)

    def build(self) -> None:
        """Everything that takes long and can be kept: packages and programs."""
        machine.prepare(self._say)
        self._machine.tools.build((name for row in COMPONENTS for name in row.tools), self._say)

    def up(self) -> None:
        self.build()
        with self._locked():
            if self._stamp.exists() and self._stamp.read_text() != _sources_digest():
                self._say("the cluster that runs was made by other sources: taking it down first")
                self._down()
            self.layout.state.mkdir(parents=True, exist_ok=True)
            self._stamp.write_text(_sources_digest())
            network.make(self.layout)
            network.enter(self.layout)
            for component in COMPONENTS:
                self._start(component)

    def down(self) -> None:
        with self._locked():
            self._down()

    def status(self) -> dict[str, int | None]:
        """Component → pid of its living process."""
        return {component.name: self._daemons.pid(component.name) for component in COMPONENTS}

    def is_up(self) -> bool:
        return all(pid is not None for pid in self.status().values())

    @property
    def kubectl(self) -> Path:
        """The program; of the same version as the API server."""
        return self._machine.tools.path("kubectl")

    @property
    def _stamp(self) -> Path:
        return self.layout.state / "made-by"

    def _locked(self) -> AbstractContextManager[None]:
        """One `up` or `down` at a time; the lock lies in the cache, since `down` deletes the state."""
        waits = f"another process starts or ends the cluster {self.layout.name}: waiting for it"
        return locked_folder(self.layout.cache / self.layout.name, lambda: self._say(waits), exclusive=True)

    def _start(self, component: Component) -> None:
        """One that an `up` left half started, because it was killed, is waited for and completed."""
        completed = self.layout.state / "completed" / component.name
        is_running = self._daemons.pid(component.name) is not None
        if is_running and completed.exists():
            return
        started = time.monotonic()
        completed.unlink(missing_ok=True)
        try:
            if not is_running:
                component.prepare(self._machine)
                self._daemons.start(component.name, component.command(self._machine))
            wait_until_ready(component, self._machine, lambda: self._daemons.pid(component.name) is not None)
            component.complete(self._machine)
        except StartError as error:
            self._daemons.stop(component.name)  # so that the next `up` starts it anew
            words = self._daemons.last_words(component.name)
            raise StartError(f"{error}; the end of {self._daemons.log(component.name)}: {words}") from error
        completed.parent.mkdir(exist_ok=True)
        completed.touch()
        self._say(f"{component.name} is ready after {time.monotonic() - started:.1f} s")

    def _down(self) -> None:
        order = [component.name for component in reversed(COMPONENTS)]
        for name in sorted(self._daemons.names(), key=lambda name: order.index(name) if name in order else -1):
            if name != "containerd":
                self._daemons.stop(name)
        processes.end(cgroups.processes(self.layout), grace_seconds=0)
        processes.end(self._shims())
        self._daemons.stop("containerd")
        _unmount_below(self.layout.state, self.layout.sockets)
        network.remove(self.layout)
        cgroups.remove(self.layout)
        for folder in (self.layout.state, self.layout.sockets):
            if folder.exists():
                shutil.rmtree(folder)

    def _shims(self) -> list[int]:
        """containerd's helpers, one a pod, which outlive it: those that were given our socket."""
        address = str(self.layout.containerd_socket).encode()
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and address in _command_line(entry)
            and b"containerd-shim" in _command_line(entry)[0]
        ]


def _command_line(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return [b""]


def _unmount_below(*folders: Path) -> None:
    """Deepest first; lazily, since a mount may be seen by a process that is about to end."""
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        where = line.split()[1]
        if any(where.startswith(f"{folder}/") for folder in folders):
            subprocess.run(["umount", "--lazy", where], capture_output=True, check=False)


def _sources_digest() -> str:
    """Of what could make a running cluster another than `up` would start."""
    state = hashlib.sha256()
    for module in (cgroups, components, controllers, fake_nodes, layout, network, node, pki):
        state.update(inspect.getsource(module).encode())
    for tool in TOOLS.values():
        state.update(digest(tool).encode())
    return state.hexdigest()
