"""A sealed place to run a client in: its own home and work folder, read-only elsewhere, and no network but one port.

The port leads to a Unix socket of the test. There is no route to anything else, so what a client tries beside its
model (telemetry, updates, model lists) fails, and the test shows that it gets along without.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PORT = 8100
"""Where a client in a box finds its model, on loopback."""

HERE = Path(__file__).parent

BROKEN = "def add(a, b):\n    return a - b\n"
REPAIRED = "def add(a, b):\n    return a + b\n"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a client ended."""

    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- output\n{self.output[-4000:]}\n--- errors\n{self.errors[-4000:]}"


class Box:
    """One client's folder; what was left in it can be read afterwards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.home = folder / "home"
        self.work = folder / "work"
        self.socket = folder / "model.sock"
        self.home.mkdir(parents=True)
        self.work.mkdir()
        (self.work / "calc.py").write_text(BROKEN)

    @property
    def repaired(self) -> bool:
        """Whether the client did what it was asked for."""
        return (self.work / "calc.py").read_text() == REPAIRED

    async def run(self, command: Sequence[str | Path], environment: Mapping[str, str], seconds: float) -> Finished:
        """Run a client to its end; one that takes longer is killed, with all that it started."""
        process = await asyncio.create_subprocess_exec(
            *self._sealed(Path(command[0]), environment),
            *(str(part) for part in (sys.executable, HERE / "client_bridge.py", PORT, self.socket)),
            *(str(part) for part in command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                output, errors = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # takes the namespaces, and so everything inside, along
            output, errors = await process.communicate()
            errors += f"\nended after {seconds} s".encode()
        return Finished(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))

    def _sealed(self, program: Path, environment: Mapping[str, str]) -> list[str]:
        variables = {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "TMPDIR": "/tmp",
        }
        settings = [
            part for name, value in (variables | dict(environment)).items() for part in ("--setenv", name, value)
        ]
        folder = str(self._folder)
        read = [part for path in (HERE, Path(sys.prefix), program.parents[1]) for part in ("--ro-bind", path, path)]
        return [
            *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run"),
            *map(str, read),  # they may lie below /tmp
            *("--bind", folder, folder, "--chdir", str(self.work)),
            *settings,
        ]
