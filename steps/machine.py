"""What this machine offers: Python, disk, memory, ports. Reads only; each check returns its findings."""

import shutil
import socket
import sys
from contextlib import closing
from pathlib import Path

from agentic.errors import Problem
from agentic.proxy.settings import ProxySettings

GIB = 1024**3

_CGROUP = Path("/sys/fs/cgroup")


def python_problems() -> list[Problem]:
    """The stack is pinned for one version of Python."""
    if sys.version_info[:2] == (3, 12):
        return []
    found = ".".join(str(part) for part in sys.version_info[:3])
    return [Problem(f"Python {found} runs this but 3.12 is needed: make setup finds or fetches one")]


def free_disk_gib(folder: Path) -> float:
    """Free space on the file system of a folder, or of its nearest parent that exists."""
    while not folder.exists():
        folder = folder.parent
    return round(shutil.disk_usage(folder).free / GIB, 2)


def disk_problems(root: Path, needed_gib: float) -> list[Problem]:
    """Space in the workspace."""
    free = free_disk_gib(root)
    if free >= needed_gib:
        return []
    message = f"{root} has {free:g} GiB free but {needed_gib:g} are needed: free some, or move AGENTIC_WORKSPACE"
    return [Problem(message, transient=True)]


def available_memory_gib() -> float:
    """Memory that can still be used: of the machine, and of the cgroup when that is smaller."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return round(min([machine, *_cgroup_room_bytes()]) / GIB, 2)


def _cgroup_room_bytes() -> list[int]:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed, used = (_CGROUP / limit).read_text().strip(), int((_CGROUP / usage).read_text())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        if allowed != "max":
            return [max(0, int(allowed) - used)]
    return []


def memory_kills(cgroup: Path = _CGROUP) -> int:
    """Processes that were killed because this container, or cgroup, was over its memory limit; 0 where nobody counts.

    The kernel kills one process, and the container lives on: nothing else tells why that process is gone.
    """
    for name in ("memory.events", "memory/memory.oom_control"):
        try:
            lines = (cgroup / name).read_text().splitlines()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def memory_problems(needed_gib: float) -> list[Problem]:
    """Memory before anything of ours runs."""
    available = available_memory_gib()
    if available >= needed_gib:
        return []
    message = (
        f"{available:g} GiB of memory are available but {needed_gib:g} are needed: close programs, take a smaller "
        "profile, or lower machine.memory_gib if you know better"
    )
    return [Problem(message, transient=True)]


def port_problems(proxy: ProxySettings) -> list[Problem]:
    """Ports that the settings fix; 0 means any and is never a problem."""
    fixed = (("port", proxy.host, proxy.port), ("control_port", proxy.control_host, proxy.control_port))
    return [
        Problem(
            f"port {port} on {host} is taken: end what listens there, or set rollout.proxy.{name}=0 for any free one",
            transient=True,
        )
        for name, host, port in fixed
        if port and _is_taken(host, port)
    ]


def _is_taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
