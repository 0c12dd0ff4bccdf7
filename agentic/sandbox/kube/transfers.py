"""Files in and out of a sandbox over its command channel: one tar stream, hashed on both ends, never held in memory.

Going in, the sandbox's `tar` unpacks; coming out, ours does, by the rules of `agentic.sandbox.transfer`: nothing inside
can touch another path of the host. A transfer has succeeded when `tar` has, and when the SHA-256 of all bytes is the
same on both ends, which covers their number too. Packing and unpacking wait on disks, so each has a thread of a pool of
our own, which is bounded; commands need none, so transfers never hold one up.
"""

import asyncio
import hashlib
import os
import re
import socket
import stat
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from agentic.sandbox.base import ExecResult
from agentic.sandbox.errors import SandboxTransferError
from agentic.sandbox.kube.execution import ExecRequest, SandboxExec
from agentic.sandbox.transfer import LimitedReader, TooLargeError, pack, unpack

CHUNK_BYTES = 256 * 1024
SOCKET_BYTES = 1024 * 1024
FAILED = "transfer failed"

FILTER = """
import fcntl, hashlib, sys
for pipe in 0, 1:
    try:
        fcntl.fcntl(pipe, 1031, 1 << 20)
    except OSError:
        pass
digest, block = hashlib.sha256(), memoryview(bytearray(1 << 17))
source, target = open(0, "rb", 0), open(1, "wb", 0)
while True:
    count = source.readinto(block)
    if not count:
        break
    digest.update(block[:count])
    written = 0
    while written < count:
        written += target.write(block[written:count])
print(digest.hexdigest(), " -", file=sys.stderr)
"""
"""Hashes what passes, by larger pipes (1031 is F_SETPIPE_SZ) and the processor's own instructions: a quarter of the CPU
of `tee` and `sha256sum`, and fewer hands to go through; but a start of 15 ms, hence for large transfers only. Runs on
Python 3.6 and later: it is the image's."""
CAN_FILTER = "import fcntl, hashlib, sys; hashlib.sha256(); sys.exit(sys.version_info < (3, 6))"
"""Asked of the image's Python first: one that is too old or lacks a part hashes nothing, and is done without."""
LARGE_KIB = 8 * 1024

NEEDED = (
    r"""
for program in dd tar tee sha256sum; do
  command -v "$program" >/dev/null || { echo "the image has no $program" >&2; exit 3; }
done
"""
    f'is_large() {{ [ "${{1:-0}}" -gt {LARGE_KIB} ] && can_filter; }}\n'
    f"can_filter() {{ python3 -I -S -c '{CAN_FILTER}' </dev/null >/dev/null 2>&1; }}\n"
    f"filter() {{ python3 -I -S -c '{FILTER}'; }}\n"
)

UNPACK = (
    NEEDED
    + r"""
mkdir -p -- "$1" || exit 3
unpack() { tar -xpf - --no-same-owner -C "$1" >&2 || echo "transfer failed" >&2; cat >/dev/null; }
if is_large "$2"; then filter | unpack "$1"; exit; fi
{ tee /dev/fd/3 | unpack "$1"; } 3>&1 | sha256sum >&2
"""
)
"""Run as `sh -c UNPACK sh FOLDER KIB`; the digest of what arrived is on standard error."""

PACK = (
    NEEDED
    + r"""
[ -e "$1" ] || { echo "no such file or folder" >&2; exit 3; }
archive() {
  if [ -d "$1" ]; then tar -cf - -C "$1" .; else tar -chf - -C "$(dirname -- "$1")" -- "./$(basename -- "$1")"; fi ||
    echo "transfer failed" >&2
}
size() { set -- $(du -skH -- "$1" 2>/dev/null); echo "$1"; }
if is_large "$(size "$1")"; then archive "$1" | filter; exit; fi
exec 5>&1
{ archive "$1" | tee /dev/fd/3 | dd ibs=64k obs=64k 2>/dev/null >&5; } 3>&1 | sha256sum >&2
"""
)
"""Run as `sh -c PACK sh PATH`; the digest of what left is on standard error. `tee` writes 8 KiB at a time, each a
message of its own all the way to us, hence the `dd`: it doubled what a real node sends."""

DIGEST = re.compile(r"^([0-9a-f]{64})\s", re.MULTILINE)


class Digested:
    """A stream that hashes what passes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._stream.write(data)

    def drain(self) -> None:
        """Take the rest: tar ends its archive before the stream does."""
        while self.read(CHUNK_BYTES):
            pass

    def close(self) -> None:
        self._stream.close()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class Transfers:
    """All transfers of one process; more than `concurrency` at once wait for their turn."""

    def __init__(self, concurrency: int = 16, timeout_seconds: float = 1800.0) -> None:
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="sandbox-transfer")
        self._gate = asyncio.Semaphore(concurrency)
        self._timeout_seconds = timeout_seconds

    async def upload(self, sandbox: SandboxExec, source: Path, target: str, *, user: str | None = None) -> None:
        """A file to the path `target`, or a folder's contents into the folder `target`."""
        what = f"cannot upload {source} to {target}"
        async with self._gate:
            try:
                is_folder, kib = await self._in_thread(size_up, source)
            except OSError as error:
                raise SandboxTransferError(f"{what}: {error.strerror}") from error
            folder, name = (target, "") if is_folder else os.path.split(target)
            words = ["/bin/sh", "-c", UNPACK, "sh", folder or "/", str(kib)]
            async with _Pipe() as pipe:
                packing = self._in_thread(_pack, source, name, pipe.theirs)
                try:
                    result = await sandbox.run(self._request(words, user, stdin=pipe.chunks()))
                finally:
                    pipe.close_ours()
                    digest = (await asyncio.gather(packing, return_exceptions=True))[0]
        if isinstance(digest, BaseException):
            raise SandboxTransferError(f"{what}: {digest}") from digest
        check(result, str(digest), what)

    async def download(
        self, sandbox: SandboxExec, source: str, target: Path, *, limit_bytes: int, user: str | None = None
    ) -> None:
        """A file to the path `target`, or a folder's contents into the folder `target`."""
        what = f"cannot download {source}"
        async with self._gate, _Pipe() as pipe:
            unpacking = self._in_thread(_unpack, pipe.theirs, target, limit_bytes)
            words = ["/bin/sh", "-c", PACK, "sh", source]
            try:
                result = await sandbox.run(self._request(words, user, sink=pipe.send))
            except (BrokenPipeError, ConnectionResetError):
                result = None  # Our side has given up, and says why below.
            finally:
                pipe.close_ours()
                digest = (await asyncio.gather(unpacking, return_exceptions=True))[0]
        if isinstance(digest, TooLargeError) or (result is None and isinstance(digest, BaseException)):
            raise digest
        if result is not None and (result.exit_code != 0 or FAILED in result.error_text):
            raise SandboxTransferError(f"{what}: {last_words(result)}")
        if isinstance(digest, SandboxTransferError):
            raise digest
        if isinstance(digest, BaseException) or result is None:
            raise SandboxTransferError(f"{what} to {target}: {digest}")
        check(result, digest, what)

    def _request(self, words: list[str], user: str | None, **streams: Any) -> ExecRequest:
        return ExecRequest(words, timeout_seconds=self._timeout_seconds, user=user, **streams)

    def _in_thread[T](self, call: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def close(self) -> None:
        """May be repeated."""
        self._threads.shutdown(wait=False)


def size_up(source: Path) -> tuple[bool, int]:
    """Whether it is a folder, and its KiB. Raises OSError where there is nothing, or nothing that can be looked at."""
    status = source.stat()
    if not stat.S_ISDIR(status.st_mode):
        return False, status.st_size // 1024
    return True, sum(path.lstat().st_size for path in source.rglob("*")) // 1024


def check(result: ExecResult, digest: str, what: str) -> None:
    """Raises SandboxTransferError unless the other end succeeded and saw the same bytes."""
    if result.timed_out:
        raise SandboxTransferError(f"{what}: not done in time")
    if result.exit_code != 0 or FAILED in result.error_text:
        raise SandboxTransferError(f"{what}: {last_words(result)}")
    found = DIGEST.findall(result.error_text)
    if not found or found[-1] != digest:
        raise SandboxTransferError(f"{what}: what arrived is not what was sent: try again")


def last_words(result: ExecResult) -> str:
    lines = DIGEST.sub("", result.error_text).replace(FAILED, "").split("\n")
    return " ".join(" ".join(lines).split())[-300:] or f"exit code {result.exit_code}"


class _Pipe:
    """Bytes between the event loop and a thread, held back when the other side is slow."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        for end in (self._ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)

    async def __aenter__(self) -> "_Pipe":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close_ours()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._ours, data)

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._ours, CHUNK_BYTES):
            yield data

    def close_ours(self) -> None:
        self._ours.close()


def _pack(source: Path, name: str, end: socket.socket) -> str:
    with end, end.makefile("wb", buffering=CHUNK_BYTES) as stream:
        digested = Digested(cast(IO[bytes], stream))
        pack(source, name, cast(IO[bytes], digested))
        return digested.hexdigest()


def _unpack(end: socket.socket, target: Path, limit_bytes: int) -> str:
    with end, end.makefile("rb", buffering=CHUNK_BYTES) as stream:
        # The limit holds for what comes after the archive as well.
        digested = Digested(cast(IO[bytes], LimitedReader(cast(IO[bytes], stream), limit_bytes)))
        unpack(cast(IO[bytes], _Open(digested)), target, limit_bytes)
        digested.drain()
        return digested.hexdigest()


class _Open:
    """A stream that whoever reads it cannot close."""

    def __init__(self, stream: Digested) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(size)

    def __enter__(self) -> "_Open":
        return self

    def __exit__(self, *_: object) -> None:
        pass
