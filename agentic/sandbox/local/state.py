"""What a running sandbox leaves on disk, so that whoever comes later can clear up after an owner that was killed.

    running/<run id>/<sandbox id>/state.json

An owner is alive when a process with its id exists that started when it did. Only sandboxes of dead owners are swept;
so sweeping beside other processes of the same run, or of other runs, is safe, and so is sweeping twice.
"""

import contextlib
import json
import os
import re
import shutil
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from agentic.sandbox.errors import SandboxSetupError
from agentic.sandbox.local.cgroup import remove_cgroups

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told apart from a later one with the same id."""

    pid: int
    started: int
    """In clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class SandboxState:
    """The content of state.json."""

    owner: ProcessIdentity
    cgroups: tuple[str, ...] = ()
    init: ProcessIdentity | None = None
    """Process 1 of the sandbox, once it is up."""


def identify(pid: int) -> ProcessIdentity | None:
    """The process with this id, or None when there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else ProcessIdentity(pid, int(fields[19]))


def own_identity() -> ProcessIdentity:
    identity = identify(os.getpid())
    if identity is None:
        raise SandboxSetupError("/proc is not mounted: sandboxes need it")
    return identity


class RunningFolder:
    """All state folders."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, run_id: str, sandbox_id: str) -> Path:
        for name in (run_id, sandbox_id):
            if not SAFE_NAME.fullmatch(name):
                raise SandboxSetupError(f"{name!r} is no run or sandbox id: use letters, digits, '.', '_' and '-'")
        return self._root / run_id / sandbox_id

    def write(self, run_id: str, sandbox_id: str, state: SandboxState) -> None:
        folder = self.folder(run_id, sandbox_id)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / "state.json.new"
        temporary.write_text(json.dumps(asdict(state)))
        temporary.replace(folder / "state.json")

    def remove(self, run_id: str, sandbox_id: str) -> None:
        shutil.rmtree(self.folder(run_id, sandbox_id), ignore_errors=True)

    def sweep(self, run_id: str) -> int:
        """Remove the sandboxes of this run whose owners are dead; how many there were."""
        swept = 0
        for folder in sorted((self._root / run_id).glob("*")):
            state = read_state(folder / "state.json")
            if state is not None and identify(state.owner.pid) == state.owner:
                continue
            if state is not None:
                if state.init is not None and identify(state.init.pid) == state.init:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(state.init.pid, signal.SIGKILL)
                remove_cgroups(state.cgroups)
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
        with contextlib.suppress(OSError):
            (self._root / run_id).rmdir()
        return swept


def read_state(path: Path) -> SandboxState | None:
    """The state in a file; None when the owner was killed before it was whole."""
    try:
        fields = json.loads(path.read_text())
        init = ProcessIdentity(**fields["init"]) if fields["init"] else None
        return SandboxState(ProcessIdentity(**fields["owner"]), tuple(fields["cgroups"]), init)
    except (OSError, ValueError, KeyError, TypeError):
        return None
