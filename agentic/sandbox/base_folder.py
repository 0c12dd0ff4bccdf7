"""The base of every local image, `agentic/base:local`: a skeleton root folder plus read-only views of this machine.

Owned here: what of the host a sandbox sees. That is /usr (with /bin, /lib and the like where they are separate), and
the Python that runs us, at /opt/python, so that `python3` inside is a real interpreter of our version whatever the
host calls by that name. Nothing else: /etc, /root, /home, /var, /run and /tmp are the skeleton's own.
"""

import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

BASE_IMAGE = "agentic/base:local"
PYTHON = "/opt/python"
PATH = f"{PYTHON}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

FOLDERS = {
    "dev": 0o755,
    "etc": 0o755,
    "home": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "opt/python": 0o755,
    "opt/python/bin": 0o755,
    "opt/python/lib": 0o755,
    "proc": 0o755,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}
TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on most machines; folders of their own on others."""

TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "etc/hostname": "sandbox\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/profile": f"export PATH={PATH}\n",
}


@dataclass(frozen=True, slots=True)
class Bind:
    """A read-only view of the host."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """What the skeleton holds, and what is bound over it. Made by `plan_base`, pure data."""

    folders: dict[str, int]
    files: dict[str, tuple[int, bytes]]
    links: dict[str, str]
    binds: tuple[Bind, ...]
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "LANG": "C.UTF-8"})

    @property
    def digest(self) -> str:
        """Of everything that could make an image built on it differ."""
        parts = {
            "folders": self.folders,
            "files": {name: [mode, hashlib.sha256(data).hexdigest()] for name, (mode, data) in self.files.items()},
            "links": self.links,
            "binds": [[bind.source, bind.target] for bind in self.binds],
            "env": self.env,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Make the skeleton in an empty folder."""
        for name, mode in self.folders.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(mode)
        for name, (mode, data) in self.files.items():
            (folder / name).write_bytes(data)
            (folder / name).chmod(mode)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)


def plan_base(host: Path = Path("/")) -> BaseFolder:
    """The base as this machine can provide it. Reads the host, writes nothing."""
    folders = dict(FOLDERS)
    files = {name: (0o644, text.encode()) for name, text in TEXTS.items()}
    links = {"etc/mtab": "../proc/self/mounts", "etc/os-release": "../usr/lib/os-release"}
    binds = [Bind(str(host / "usr"), "/usr")]
    for name in TOP_LEVEL:
        path = host / name
        if path.is_symlink():
            links[name] = str(path.readlink())
        elif path.is_dir():
            folders[name] = 0o755
            binds.append(Bind(str(path), f"/{name}"))
    cache = host / "etc/ld.so.cache"
    if cache.is_file():
        files["etc/ld.so.cache"] = (0o644, cache.read_bytes())
    alternatives = host / "etc/alternatives"
    if alternatives.is_dir():
        folders["etc/alternatives"] = 0o755
        links |= {f"etc/alternatives/{p.name}": str(p.readlink()) for p in alternatives.iterdir() if p.is_symlink()}
    _plan_python(Path(sys.base_prefix), files, links, binds)
    return BaseFolder(folders, files, dict(sorted(links.items())), tuple(binds))


def find_shell() -> str:
    """What runs a command line: bash, as in most images, where the host has it."""
    return "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


def _plan_python(prefix: Path, files: dict[str, tuple[int, bytes]], links: dict[str, str], binds: list[Bind]) -> None:
    """Our interpreter at /opt/python: a link when /usr has it, else its binary, and its library folder bound."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    binary = (prefix / "bin" / name).resolve()
    if prefix.is_relative_to("/usr"):
        links[f"opt/python/bin/{name}"] = str(binary)
    else:
        files[f"opt/python/bin/{name}"] = (0o755, move_library_path(binary.read_bytes(), f"{prefix}/lib"))
        binds.append(Bind(f"{prefix}/lib", f"{PYTHON}/lib"))
    links |= {"opt/python/bin/python3": name, "opt/python/bin/python": name}


def move_library_path(binary: bytes, old: str) -> bytes:
    """Point an interpreter that finds its shared library by an absolute path at /opt/python/lib instead.

    The path is a NUL-terminated string in the binary, and the new one fits in its place since it is shorter; when it
    isn't, or there is no such string, the binary stays as it is.
    """
    old_string, new_string = old.encode() + b"\0", f"{PYTHON}/lib".encode() + b"\0"
    if len(new_string) > len(old_string):
        return binary
    return binary.replace(old_string, new_string.ljust(len(old_string), b"\0"))
