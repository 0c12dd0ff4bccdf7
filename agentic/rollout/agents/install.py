"""Makes the folders of `tools.py` from their registries: each whole or not at all, once, with nothing of it in a trial.

A folder is made aside and renamed when it is done, so that installers may run side by side and be killed at any moment.
Install scripts of packages stay off: of npm's they would only copy the program to where npm's launcher looks for it.
What is made is readable by everybody, since a sandbox's user is nobody on the host.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentic.rollout.agents.tools import (
    PYTHON_INSIDE,
    TOOLS,
    NpmTool,
    PythonTool,
    SystemTool,
    host_folder,
    tool_cache,
)
from agentic.rollout.errors import ToolsError, ToolsUnavailableError

_UV_OF_CLONE = Path(__file__).resolve().parents[3] / ".bootstrap/bin/uv"
"""Where `make setup` puts it when the machine has none."""


def install(name: str) -> Path:
    """Make one agent's tools unless they are there; where their command lies.

    Raises ToolsError when it cannot work here, ToolsUnavailableError when another try may.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise ToolsError(f"no tools are called {name!r}: use one of {', '.join(sorted(TOOLS))}")
    if isinstance(tool, SystemTool):
        return ensure_program(tool.command)
    folder = host_folder(name)
    if not folder.is_dir():
        tool_cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=tool_cache()) as parent:
            making = Path(parent) / "tool"
            making.mkdir()
            _make(tool, making)
            _put(making, folder)
    return folder / "bin" / tool.command


def ensure_program(name: str) -> Path:
    """A program of the distribution, installed when we may."""
    if found := shutil.which(name):
        return Path(found)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise ToolsError(f"{name} is missing: install it, such as by 'apt-get install {name}'")
    _run("apt-get", "update", "-qq")
    _run("apt-get", "install", "-qq", "-y", "--no-install-recommends", name, DEBIAN_FRONTEND="noninteractive")
    return Path(shutil.which(name) or name)


def _make(tool: NpmTool | PythonTool, folder: Path) -> None:
    if isinstance(tool, NpmTool):
        _make_npm(tool, folder)
    else:
        _make_python(tool, folder)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))


def _make_npm(tool: NpmTool, folder: Path) -> None:
    ensure_program("npm")
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    _run("npm", "install", "--prefix", str(folder), *quiet, f"{tool.package}@{tool.version}")
    found = next(iter(sorted(folder.glob(f"node_modules/{tool.program}"))), None)
    if found is None:
        raise ToolsError(f"{tool.package} {tool.version} has no program at {tool.program}: look for its new place")
    (folder / "bin").mkdir()
    (folder / "bin" / tool.command).symlink_to(Path("..") / found.relative_to(folder))


def _make_python(tool: PythonTool, folder: Path) -> None:
    """A virtual environment over the interpreter that sandboxes have, which need not be there on this machine."""
    uv = shutil.which("uv") or str(_UV_OF_CLONE)
    if not Path(uv).exists():
        raise ToolsError("no uv in PATH: run 'make setup', or install it ('pip install uv')")
    _run(uv, "venv", "--quiet", "--allow-existing", "--relocatable", "--python", sys.executable, str(folder))
    python, pins = str(folder / "bin/python"), str(tool.pins)
    _run(uv, "pip", "install", "--quiet", "--compile-bytecode", "--no-deps", "--python", python, "-r", pins)
    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to(PYTHON_INSIDE)
    config = folder / "pyvenv.cfg"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("home")]
    config.write_text("\n".join([f"home = {Path(PYTHON_INSIDE).parent}", *lines, ""]))


def _put(making: Path, folder: Path) -> None:
    try:
        making.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise ToolsUnavailableError(f"{folder} could not be written: {error.strerror}") from error


def _run(*command: str, **environment: str) -> None:
    done = _finished(command, environment)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-400:]
        raise ToolsUnavailableError(f"{' '.join(command[:3])} ended with {done.returncode}: {said}")


def _finished(command: Sequence[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
