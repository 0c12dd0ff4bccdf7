"""What the cluster needs of the machine: root, a few programs from Debian, writable control groups."""

import os
import shutil
import subprocess
from pathlib import Path

from testbed.errors import MachineError
from testbed.tools import Say

PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/lib/cni/host-local": "containernetworking-plugins",
    "docker-registry": "docker-registry",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ipset": "ipset",
    "newuidmap": "uidmap",
    "openssl": "openssl",
    "ip": "iproute2",
    "sysctl": "procps",
    "nsenter": "util-linux",
}
"""Program, or file → Debian package."""


def prepare(say: Say) -> None:
    """Installs what is missing where apt-get can; else says what to install."""
    if os.geteuid() != 0:
        raise MachineError(
            "a cluster makes namespaces, mounts and control groups: run it as root, or in a virtual machine"
        )
    missing = missing_packages()
    if not missing:
        return
    say(f"installing {' '.join(missing)}")
    if not shutil.which("apt-get") or not _apt_install(missing):
        raise MachineError(f"these packages are missing and could not be installed: {' '.join(missing)}")
    if still := missing_packages():
        raise MachineError(f"installed, but their programs are not on PATH: {' '.join(still)}")


def missing_packages() -> list[str]:
    found = {package for program, package in PROGRAMS.items() if not _has(program)}
    return sorted(found)


def _has(program: str) -> bool:
    return Path(program).is_file() if program.startswith("/") else shutil.which(program) is not None


def _apt_install(packages: list[str]) -> bool:
    """Once more after an update: a fresh machine knows no package lists."""
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages]
    return _runs(install) or (_runs(["apt-get", "update", "-qq"]) and _runs(install))


def _runs(command: list[str]) -> bool:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
