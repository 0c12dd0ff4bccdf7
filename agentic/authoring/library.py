"""Gets a library's source and what its tests need: from the registry by pip, or from a folder of this machine.

pip is the interpreter's own, with whatever index it is configured for. What it fetched stays in the work folder, by
what it was asked for, so that a second call fetches nothing and one that asks for something else gets that. Nothing of
the library is run here but what pip itself runs of an sdist: its build back end, asked for metadata.
"""

import hashlib
import importlib.metadata
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentic.errors import TransientError
from agentic.tasks.errors import DataError
from agentic.tasks.mutation.library_task import Library

BASE_IMAGE = "agentic/base:local"
PIP_SECONDS = 600.0
LARGEST_FILE = 2_000_000
"""Bytes; larger ones are data that no test of a small library needs."""
LEFT_OUT = frozenset({".git", "__pycache__", ".tox", ".venv", "node_modules", "build", "dist"})


class RegistryError(TransientError):
    """pip could not fetch something; the line says what it said."""


def get_library(package: str, extra: Sequence[str], work: Path) -> Library:
    """`package` is a folder, a name, or `name==version`; `extra` are more requirements of its tests."""
    pytest = f"pytest=={importlib.metadata.version('pytest')}"
    if Path(package).is_dir():
        name, version, tree = Path(package).resolve().name, "(local)", read_tree(Path(package))
        wheels = _wheels([pytest, *extra], "", work)
    else:
        archive = _sdist(package, _place(work / "sdist", package))
        name, _, version = archive.name.removesuffix(".tar.gz").rpartition("-")
        tree = _unpack(archive)
        wheels = _wheels([pytest, f"{name}=={version}", *extra], name, work)
    if not any(path.endswith(".py") for path in tree):
        raise DataError(f"{package} has no Python files: give a library, as a name or as a folder")
    return Library(name, version, tree, wheels, BASE_IMAGE)


def make_wheels(folder: Path) -> Mapping[str, bytes]:
    """What pytest needs, pinned with digests in `requirements.txt`."""
    return _wheels([f"pytest=={importlib.metadata.version('pytest')}"], "", folder)


def read_tree(folder: Path) -> dict[str, bytes]:
    """The files of a source tree, without what is made from it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    named = ((path.relative_to(folder), path) for path in paths if path.stat().st_size <= LARGEST_FILE)
    return {name.as_posix(): path.read_bytes() for name, path in named if not LEFT_OUT & set(name.parts)}


def _place(folder: Path, *asked: str) -> Path:
    """Where the answer to this question is kept."""
    return folder / hashlib.sha256("\0".join(asked).encode()).hexdigest()[:12]


def _sdist(package: str, folder: Path) -> Path:
    if not (found := sorted(folder.glob("*.tar.gz"))):
        _pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), package)
        found = sorted(folder.glob("*.tar.gz"))
    if not found:
        raise DataError(f"{package} has no source archive in the registry: give a folder with its source")
    return found[0]


def _unpack(archive: Path) -> dict[str, bytes]:
    """The files below the archive's one folder."""
    tree: dict[str, bytes] = {}
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            _, _, name = member.name.partition("/")
            if member.isfile() and member.size <= LARGEST_FILE and ".." not in Path(name).parts:
                file = opened.extractfile(member)
                tree[name] = file.read() if file is not None else b""
    return dict(sorted(tree.items()))


def _wheels(requirements: Sequence[str], own: str, work: Path) -> Mapping[str, bytes]:
    """All but the library's own, pinned with their digests."""
    folder = _place(work / "wheels", *requirements)
    done = folder / "requirements.txt"
    if not done.is_file():
        _pip("download", "--only-binary", ":all:", "--dest", str(folder), *requirements)
        wheels = {path.name: path.read_bytes() for path in sorted(folder.glob("*.whl")) if not _is_of(path.name, own)}
        lines = []
        for name, data in wheels.items():
            project, version, *_ = name.split("-")
            lines.append(f"{project}=={version} --hash=sha256:{hashlib.sha256(data).hexdigest()}")
        done.write_text("\n".join(lines) + "\n")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not _is_of(path.name, own)}


def _is_of(wheel: str, project: str) -> bool:
    return bool(project) and wheel.partition("-")[0].lower().replace("_", "-") == project.lower().replace("_", "-")


def _pip(*words: str) -> None:
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    command = [str(python), "-m", "pip", *words, "--quiet", "--retries", "2", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RegistryError(f"pip {words[0]} took longer than {PIP_SECONDS:g} s: try again") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise RegistryError(f"pip {words[0]} {words[-1]} failed: {lines[-1][:200]}: try again, or give a folder")
