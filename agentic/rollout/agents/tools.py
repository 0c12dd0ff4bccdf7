"""The prebaked tools of agents that run inside a sandbox: the one list of what is pinned, and where it lies.

A tool is a folder that is made once for a machine (`install.py`) and shown read-only to sandboxes: nothing is fetched
in a trial. Its name holds the version, and of a tool in Python a digest of all pins too, so that a folder of that name
is what the name says or isn't there. Pure data and paths; nothing here runs a program.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agentic.rollout.errors import ToolsError

INSIDE = "/opt/agentic/agents"
"""Where the folders are seen inside a sandbox, and where an image of a registry has to hold them."""

PYTHON_INSIDE = "/opt/python/bin/python3.12"
"""The interpreter of tools in Python: that of the base of local images; an image of a registry brings one there."""

_PINS = Path(__file__).with_name("pins")


@dataclass(frozen=True, slots=True)
class NpmTool:
    """A package of npm that brings a program for each kind of machine."""

    name: str
    version: str
    package: str
    command: str
    """What the program is called by."""
    programs: Mapping[str, str]
    """Where it lies below `node_modules`, by the machine's architecture; a pattern."""

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def program(self) -> str:
        """The pattern for this machine."""
        machine = platform.machine()
        if machine not in self.programs:
            raise ToolsError(f"{self.name} has no program for {machine}: use one of {', '.join(self.programs)}")
        if machine == "x86_64" and "x86_64-baseline" in self.programs and not _has_avx2():
            return self.programs["x86_64-baseline"]
        return self.programs[machine]


@dataclass(frozen=True, slots=True)
class PythonTool:
    """Packages of PyPI in a virtual environment of their own; every one is pinned in `pins/NAME.txt`."""

    name: str
    version: str
    command: str

    @property
    def pins(self) -> Path:
        return _PINS / f"{self.name}.txt"

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{self.version}-{hashlib.sha256(self.pins.read_bytes()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class SystemTool:
    """A program of the distribution: the host's, which local sandboxes see, or that of the image."""

    name: str
    command: str


Tool = NpmTool | PythonTool | SystemTool

TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            PythonTool("mini-swe-agent", "2.4.6", "mini-swe-agent"),
            PythonTool("openhands", "1.58.2", "python"),
            SystemTool("terminus-2", "tmux"),
            NpmTool(
                "claude-code",
                "2.1.332",
                "@anthropic-ai/claude-code",
                "claude",
                {
                    "x86_64": "@anthropic-ai/claude-code-linux-x64/claude",
                    "aarch64": "@anthropic-ai/claude-code-linux-arm64/claude",
                },
            ),
            NpmTool(
                "codex",
                "0.171.0",
                "@openai/codex",
                "codex",
                {
                    "x86_64": "@openai/codex-linux-x64/vendor/*/bin/codex",
                    "aarch64": "@openai/codex-linux-arm64/vendor/*/bin/codex",
                },
            ),
            NpmTool(
                "opencode",
                "1.18.33",
                "opencode-ai",
                "opencode",
                {
                    "x86_64": "opencode-linux-x64/bin/opencode",
                    "x86_64-baseline": "opencode-linux-x64-baseline/bin/opencode",
                    "aarch64": "opencode-linux-arm64/bin/opencode",
                },
            ),
        )
    }
)
"""By the agent's name."""


def tool_cache() -> Path:
    """The folder of this user that holds the tools' folders, shared by all clones."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "agentic-rl" / "agents"


def host_folder(name: str) -> Path:
    """Where a tool lies on this machine, whether it has been made or not."""
    return tool_cache() / _made(name).folder_name


def inside_folder(name: str) -> str:
    """Where the same is seen inside a sandbox."""
    return f"{INSIDE}/{_made(name).folder_name}"


def shown_folders(name: str) -> dict[str, str]:
    """What a sandbox of this machine is shown of an agent's tools: folders by where they are seen inside.

    A folder that has not been made is named all the same: who starts a sandbox with it is told what to do.
    """
    tool = TOOLS.get(name)
    return {} if isinstance(tool, SystemTool) else {str(host_folder(name)): inside_folder(name)}


def _made(name: str) -> NpmTool | PythonTool:
    tool = TOOLS.get(name)
    if tool is None or isinstance(tool, SystemTool):
        raise ToolsError(f"no agent {name!r} has a folder of tools: use one of {', '.join(sorted(TOOLS))}")
    return tool


def _has_avx2() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.is_file() and " avx2 " in cpu.read_text()
