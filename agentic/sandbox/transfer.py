"""Files in and out of a sandbox as tar streams, packed and unpacked by us on this side and by `tar` on the other.

Going in, `tar` runs inside, as the sandbox's root user, so a link planted there leads nowhere but inside. Coming out,
the stream is untrusted: names may not climb, devices are skipped, and symbolic links are made last, when nothing is
written any more, below no other link, and only those that stay inside the folder. Contents, permission bits and links
are exact; owners, and set-user-id bits, are not carried over. What a stream unpacks to is bounded, not only the stream:
a sparse member claims any size in one block.

Folders that trainers and trial servers send each other are unpacked by the same code (`unpack_folder`).
"""

import contextlib
import errno
import gzip
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from agentic.sandbox.errors import SandboxTransferError

BLOCK_BYTES = 256 * 1024
"""Of a stream at a time; tar's own 10 KiB cost more in calls than in bytes, and 1 MiB, which Python asks the kernel for
anew each time, costs twice the CPU of all else here."""

MEMBER_BYTES = 4096
"""Of a stream for one member beside its content: headers and padding, a long name included."""

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""What no archive can bring about by its content."""

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
            raise _too_large(self._limit_bytes)
        return chunk


def _too_large(limit_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"what comes out of the sandbox exceeds {limit_bytes} bytes: raise sandbox.download_limit_bytes"
    )


class Bounds(NamedTuple):
    """What an archive may unpack to."""

    limit_bytes: int
    limit_members: int | None = None
    """Files, folders and links; None: as many as the stream holds."""


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
                if first.size > limit_bytes:
                    raise _too_large(limit_bytes)
                _write_file(archive, first, target)
                return
            _unpack_members(archive, target, Bounds(limit_bytes))
    except (tarfile.TarError, FileExistsError, NotADirectoryError) as error:
        raise SandboxTransferError(f"what came out of the sandbox for {target} is damaged: {error}") from error


def unpack_folder(stream: IO[bytes], target: Path, *, limit_bytes: int, limit_members: int) -> None:
    """Make the folder `target` of a compressed tar archive that nobody vouches for, by the rules above. Raises
    SandboxTransferError when it is damaged, too large or leads outside, and OSError when this machine's disk is what
    fails; what was made by then is left."""
    stream_bytes = limit_bytes + limit_members * MEMBER_BYTES + BLOCK_BYTES
    try:
        with gzip.GzipFile(fileobj=stream, mode="rb") as content:
            limited = cast(IO[bytes], LimitedReader(cast(IO[bytes], content), stream_bytes))
            with tarfile.open(fileobj=limited, mode="r|", bufsize=BLOCK_BYTES) as archive:
                _unpack_members(archive, target, Bounds(limit_bytes, limit_members))
    except TooLargeError as error:
        message = f"the archive holds more than {limit_bytes} bytes or {limit_members} files and folders"
        raise TooLargeError(message) from error
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise SandboxTransferError(f"the archive is damaged: {error}") from error
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise
        raise SandboxTransferError(f"the archive is damaged: {error}") from error


def _unpack_members(archive: tarfile.TarFile, target: Path, bounds: Bounds) -> None:
    target.mkdir(parents=True, exist_ok=True)
    modes: dict[Path, int] = {}
    links: list[tuple[PurePosixPath, str]] = []
    for member, name in _members(archive, bounds):
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
        _make_link(target, name, destination)


def _make_link(target: Path, name: PurePosixPath, destination: str) -> None:
    """Below real folders alone: what stays inside is told by the link's name, and by way of another link the place that
    it is made in would not be where the name says."""
    for parent in list(name.parents)[:-1]:
        if (target / parent).is_symlink():
            raise SandboxTransferError(f"a path leads through a link: {str(name)!r}")
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    _clear(target / name)
    (target / name).symlink_to(destination)


def _members(archive: tarfile.TarFile, bounds: Bounds) -> Iterator[tuple[tarfile.TarInfo, PurePosixPath]]:
    left_bytes = bounds.limit_bytes
    for number, member in enumerate(archive):
        left_bytes -= member.size
        if left_bytes < 0:
            raise _too_large(bounds.limit_bytes)
        if bounds.limit_members is not None and number >= bounds.limit_members:
            raise TooLargeError(f"more than {bounds.limit_members} files and folders")
        name = _inner_name(member.name)
        if name != PurePosixPath("."):
            yield member, name


def _inner_name(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SandboxTransferError(f"a path leads out of its folder: {name!r}")
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
        raise SandboxTransferError(f"there came no regular file for {path}")
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
