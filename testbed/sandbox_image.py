"""`agentic/base:local` as an OCI image: the base that local sandboxes have, cut down to what a container needs.

The local sandbox sees all of this machine's /usr; an image of that would be gigabytes. So the layer holds the same
skeleton and the same Python at /opt/python, but of /usr only the files of a list of Debian packages and all that they
depend on, copied from this machine: no network, no debootstrap, and seconds to make.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentic.sandbox.base_folder import PYTHON, BaseFolder, plan_base
from testbed.errors import MachineError
from testbed.images import Entry, ImageConfig, write_image

IMAGE = "docker.io/agentic/base:local"
"""The whole name of what a Dockerfile here calls `agentic/base:local`."""

PACKAGES = (
    *("base-files", "bash", "coreutils", "dash", "debianutils", "diffutils", "findutils", "gawk", "grep", "gzip"),
    *("hostname", "less", "libc-bin", "mawk", "ncurses-bin", "patch", "procps", "sed", "tar", "util-linux", "xz-utils"),
    *("ca-certificates", "git", "make"),
    *("libexpat1", "libffi8", "libreadline8", "libsqlite3-0"),  # what Python's own modules link to
)
"""What agents and tasks call; those that this machine lacks are left out."""

_LEFT_OUT = re.compile(r"^/usr/(share/(doc|man|locale|info|lintian|bug)|include|lib/(udev|systemd))(/|$)")
_PYTHON_LEFT_OUT = re.compile(
    r"(^|/)(site-packages|test|tests|idlelib|tkinter|turtledemo|ensurepip|config-[^/]*)(/|$)|\.a$"
)
_FORMAT = "1"


def make_sandbox_image(folder: Path) -> Path:
    """The image's tar in a folder of the cache; written only when this machine's packages or Python differ."""
    base = plan_base()
    packages = installed_closure(PACKAGES)
    parts = [_FORMAT, base.digest, sys.version, *(f"{name}={version}" for name, version in sorted(packages.items()))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    out = folder / f"base-{key[:16]}.tar"
    if not out.exists():
        write_image(out, IMAGE, entries(base, packages), ImageConfig(env=base.env))
    return out


def entries(base: BaseFolder, packages: Iterable[str]) -> Iterator[Entry]:
    """Parents before what they hold, each path once."""
    found: dict[str, Entry] = {f"/{name}": Entry(name, mode) for name, mode in base.folders.items()}
    found |= {f"/{name}": Entry(name, mode, data=data) for name, (mode, data) in base.files.items()}
    found |= {f"/{name}": Entry(name, 0o777, link=target) for name, target in base.links.items()}
    for path in _package_files(packages):
        found.setdefault(str(path), _copy(path, str(path)))
    for path in Path("/usr/bin").iterdir():  # names such as awk, which belong to no package
        if path.is_symlink() and str(path.readlink()).startswith("/etc/alternatives/") and str(path.resolve()) in found:
            found.setdefault(str(path), _copy(path, str(path)))
    library = Path(sys.base_prefix) / "lib"
    if any(bind.target == f"{PYTHON}/lib" for bind in base.binds):
        for path in library.rglob("*"):
            inside = path.relative_to(library)
            if not _PYTHON_LEFT_OUT.search(str(inside)):
                found[f"{PYTHON}/lib/{inside}"] = _copy(path, f"{PYTHON}/lib/{inside}")
    return (entry for _, entry in sorted(_with_parents(found).items()))


def installed_closure(wanted: Iterable[str]) -> dict[str, str]:
    """Installed packages among those wanted, and what they depend on: name → version."""
    template = "${Package}\t${Version}\t${Status}\t${Pre-Depends},${Depends}\t${Provides}\n"
    versions: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    provider: dict[str, str] = {}
    for line in _dpkg_query("-W", "-f", template).splitlines():
        name, version, status, depends, provides = line.split("\t")
        if status.endswith(" installed"):
            versions[name], needs[name] = version, _names(depends)
            provider |= dict.fromkeys(_names(provides), name)
    closure: dict[str, str] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        name = name if name in versions else provider.get(name, name)
        if name in versions and name not in closure:
            closure[name] = versions[name]
            waiting += needs[name]
    return closure


def _names(relation: str) -> list[str]:
    """Of a relation field, all alternatives: `libc6 (>= 2.36) | other:any` names two."""
    return [part.split()[0].partition(":")[0] for part in re.split(r"[,|]", relation) if part.strip()]


def _package_files(packages: Iterable[str]) -> set[Path]:
    """Files and links below /usr, by their real folder: Debian's lists still say /bin where that is a link."""
    listed = {Path(line) for line in _dpkg_query("-L", *packages).splitlines() if line.startswith("/")}
    real = {path.parent.resolve() / path.name for path in listed}
    below = {path for path in real if path.is_relative_to("/usr") and not _LEFT_OUT.match(str(path))}
    return {path for path in below if path.is_symlink() or path.is_file()}


def _copy(path: Path, target: str) -> Entry:
    if path.is_symlink():
        return Entry(target, 0o777, link=str(path.readlink()))
    return Entry(target) if path.is_dir() else Entry(target, source=path)


def _with_parents(found: dict[str, Entry]) -> dict[str, Entry]:
    missing = {str(parent) for path in found for parent in Path(path).parents if str(parent) != "/"} - set(found)
    return found | {path: Entry(path) for path in missing}


def _dpkg_query(*arguments: str) -> str:
    try:
        return subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise MachineError("the sandbox image is made of Debian packages and there is no dpkg-query here") from error
    except subprocess.CalledProcessError as error:
        raise MachineError(f"dpkg-query {arguments[0]} failed: {error.stderr.strip()}") from error
