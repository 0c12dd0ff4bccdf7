"""Task folders by content: how a folder is named, sent, checked and kept.

The digest covers every path in the folder with its kind, its owner's execute bit and its content: what decides how a
trial of it goes. A folder that arrives is unpacked beside the others under a name that nobody asks for, and takes its
place only when its digest is the one that was promised. Archives are unpacked by the code that unpacks what comes out
of sandboxes (`agentic.sandbox.transfer`): nothing in one makes a file outside its folder, and size and number of
members are bounded. A folder that no trial has asked for in a long time is removed.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tarfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from uuid import uuid4

from agentic.rollout.errors import TaskFolderError
from agentic.sandbox.errors import SandboxTransferError
from agentic.sandbox.transfer import unpack_folder

MAX_MEMBERS = 20_000
"""Files and folders of one task; SWE-bench's tasks have a dozen, a task with a vendored tree some thousands."""

_PROSE = frozenset({"task", "metadata"})
"""Tables of task.toml that are for readers; nothing is filled in there."""

_VARIABLE = re.compile(r"\$\{([^}:]+)")
"""As Harbor knows one; with a default or without."""

_INCOMING = ".incoming-"
"""How names begin that nobody asks for."""


def digest_of(folder: Path) -> str:
    """The content digest of a task's folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        status = path.lstat()
        name = os.fsencode(path.relative_to(folder).as_posix())
        if stat.S_ISLNK(status.st_mode):
            kind, content = b"link", os.fsencode(path.readlink())
        elif stat.S_ISDIR(status.st_mode):
            kind, content = b"folder", b""
        elif stat.S_ISREG(status.st_mode):
            kind, content = b"program" if status.st_mode & stat.S_IXUSR else b"file", path.read_bytes()
        else:
            raise TaskFolderError(f"{path} is neither file, folder nor link: take it out of the task")
        digest.update(b"%s %d %d\0%s" % (kind, len(name), len(content), name + content))
    return digest.hexdigest()


def variables_of(folder: Path) -> frozenset[str]:
    """The variables of the machine that a task asks for, as `${NAME}`, anywhere that Harbor may fill them in. A file
    that cannot be read as one of a task asks for none: no trial of it gets as far."""
    try:
        values = tomllib.loads((folder / "task.toml").read_text())
    except (OSError, ValueError):
        return frozenset()
    texts = (text for key, value in values.items() if key not in _PROSE for text in _texts(value))
    return frozenset(name for text in texts for name in _VARIABLE.findall(text))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def pack_folder(folder: Path, stream: IO[bytes]) -> None:
    """Write a folder as a compressed tar archive; owners and times are left out."""
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


@contextlib.contextmanager
def _received(stream: IO[bytes], beside: Path, limit_bytes: int) -> Iterator[Path]:
    """What an archive holds, in a folder that is gone at the end unless it was renamed."""
    partial = beside / f"{_INCOMING}{uuid4().hex}"
    try:
        unpack_folder(stream, partial, limit_bytes=limit_bytes, limit_members=MAX_MEMBERS)
        yield partial
    except SandboxTransferError as error:
        raise TaskFolderError(f"the archive cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def receive_folder(stream: IO[bytes], target: Path, limit_bytes: int) -> None:
    """Make `target` from an archive that nobody vouches for, as a whole or not at all. Raises TaskFolderError when the
    archive is damaged, too large or leads outside, or `target` is there; OSError when the disk does not take it."""
    with _received(stream, target.parent, limit_bytes) as partial:
        if target.exists():
            raise TaskFolderError(f"{target} is there already")
        partial.rename(target)


class TaskStore:
    """The server's task folders, one for each digest."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_INCOMING}*"):
            shutil.rmtree(left, ignore_errors=True)

    def find(self, digest: str) -> Path | None:
        """The folder of this content; it counts as asked for."""
        folder = self._folder / digest
        try:
            os.utime(folder)
        except FileNotFoundError:
            return None
        return folder

    def add(self, digest: str, stream: IO[bytes]) -> Path:
        """Keep what an archive holds under the digest that it is said to have. Raises TaskFolderError when it has
        another one, OSError when the disk does not take it. May be repeated, and at the same time."""
        with _received(stream, self._folder, self._limit_bytes) as partial:
            found = digest_of(partial)
            if found != digest:
                raise TaskFolderError(f"the task was to be {digest[:12]} but the archive holds {found[:12]}")
            try:
                partial.rename(self._folder / digest)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise  # Otherwise another upload of the same content was faster.
        return self._folder / digest

    def remove_unused(self, seconds: float, in_use: frozenset[str]) -> None:
        """Forget folders that nobody has asked for in this time."""
        oldest = time.time() - seconds
        for folder in self._folder.iterdir():
            if folder.name in in_use or folder.name.startswith(_INCOMING):
                continue
            with contextlib.suppress(FileNotFoundError):
                if folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder, ignore_errors=True)
