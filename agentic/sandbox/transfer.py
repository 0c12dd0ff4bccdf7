"""Files in and out of a sandbox as tar streams, packed and unpacked by us on this side and by `tar` on the other.

Going in, `tar` runs inside, as the sandbox's root user, so a link planted there leads nowhere but inside. Coming out,
the stream is untrusted: names may not climb, devices are skipped, and symbolic links are made last, when nothing is
written any more, and only those that stay inside the folder. Contents, permission bits and links are exact;
owners, and set-user-id bits, are not carried over.
"""

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from agentic.sandbox.errors import SandboxTransferError

BLOCK_BYTES = 256 * 1024
"""Of a stream at a time; tar's own 10 KiB cost more in calls than in bytes, and 1 MiB, which Python asks the kernel for
anew each time, costs twice the CPU of all else here."""

UNPACK = 'mkdir -p -- "$1" && exec tar -xpf - --no-same-owner -C "$1"'
"""Run as `sh -c UNPACK sh FOLDER`."""

PACK = (
    'if [ -d "$1" ]; then exec tar -cf - -C "$1" .; fi; '
    '[ -e "$1" ] || { echo "no such file or folder" >&2; exit 3; }; '
    'exec tar -chf - -C "$(dirname -- "$1")" -- "./$(basename -- "$1")"'
)
"""Run as `sh -c PACK sh PATH`: a folder's contents, or one file whatever links lead to it."""


def pack(source: Path, name: str, stream: IO[bytes]) -> None:
    """Write a file under `name`, or a folder's contents, as a tar stream."""
    try:
        with tarfile.open(fileobj=stream, mode="w|", bufsize=BLOCK_BYTES, format=tarfile.PAX_FORMAT) as archive:
            if source.is_dir():
                for child in sorted(source.iterdir()):
                    archive.add(child, child.name, filter=_anonymous)
            else:
                archive.add(source.resolve(strict=True), name, filter=_anonymous)
    except BrokenPipeError:
        pass  # The other side has ended, and its exit code says why.
    finally:
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.isdev():
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class TooLargeError(SandboxTransferError):
    """More came out than the settings allow."""


class LimitedReader:
    """A stream that refuses to be longer than its limit: a sparse file inside can claim any size."""

    def __init__(self, stream: IO[bytes], limit_bytes: int) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self._taken_bytes += len(chunk)
        if self._taken_bytes > self._limit_bytes:
            raise TooLargeError(
                f"what comes out of the sandbox exceeds {self._limit_bytes} bytes: raise sandbox.download_limit_bytes"
            )
        return chunk


def unpack(stream: IO[bytes], target: Path, limit_bytes: int) -> None:
    """Read a tar stream from inside: one file to the path `target`, or a folder's contents into it."""
    try:
        limited = cast(IO[bytes], LimitedReader(stream, limit_bytes))
        with stream, tarfile.open(fileobj=limited, mode="r|", bufsize=BLOCK_BYTES) as archive:
            first = archive.next()
            if first is None:
                return
            if not first.isdir():
                target.parent.mkdir(parents=True, exist_ok=True)
                _write_file(archive, first, target)
                return
            _unpack_folder(archive, target)
    except (tarfile.TarError, FileExistsError, NotADirectoryError) as error:
        raise SandboxTransferError(f"what came out of the sandbox for {target} is damaged: {error}") from error


def _unpack_folder(archive: tarfile.TarFile, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    modes: dict[Path, int] = {}
    links: list[tuple[PurePosixPath, str]] = []
    for member, name in _members(archive):
        path = target / name
        if member.isdir():
            _clear(path, keep_folder=True)
            path.mkdir(parents=True, exist_ok=True)
            modes[path] = member.mode
        elif member.isreg():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_file(archive, member, path)
        elif member.islnk():
            _clear(path)
            path.hardlink_to(target / _inner_name(member.linkname))
        elif member.issym() and stays_inside(name, member.linkname):
            links.append((name, member.linkname))
    for path, mode in reversed(modes.items()):
        path.chmod(stat.S_IMODE(mode) & 0o777)
    for name, destination in links:
        _clear(target / name)
        (target / name).symlink_to(destination)


def _members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    for member in archive:
        name = _inner_name(member.name)
        if name != PurePosixPath("."):
            yield member, name


def _inner_name(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SandboxTransferError(f"the sandbox sent a path that leads out of the folder: {name!r}")
    return path


def stays_inside(name: PurePosixPath, destination: str) -> bool:
    """Whether a symbolic link can only lead to places within the folder that it is in. A `..` after a name could climb
    from wherever another link leads to, so only leading ones count as safe."""
    path = PurePosixPath(destination)
    ups = sum(part == ".." for part in path.parts)
    return not path.is_absolute() and all(part == ".." for part in path.parts[:ups]) and ups < len(name.parts)


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        raise SandboxTransferError(f"the sandbox sent no regular file for {path}")
    _clear(path)
    with path.open("xb") as handle:
        shutil.copyfileobj(content, handle, BLOCK_BYTES)
    path.chmod(stat.S_IMODE(member.mode) & 0o777)
    os.utime(path, (member.mtime, member.mtime))


def _clear(path: Path, keep_folder: bool = False) -> None:
    """Make room for what comes under this name."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir() and not keep_folder:
        shutil.rmtree(path)
