"""Files and folders that a reader sees as they were or as they are, never in between, on any POSIX file system."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

LOCK_POLL_SECONDS = 0.2
"""Between two tries for a lock that others hold; a blocking call could not say that it waits."""


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """The same for plain data."""
    write_text(path, json.dumps(content, indent=1))


def publish_folder(partial: Path, out: Path) -> None:
    """Give a finished folder its name by one rename; one that stands there steps aside first and is deleted last.

    The caller holds the folder by `locked_folder`: the names beside it are shared by all that make it.
    """
    if out.is_symlink():
        out.unlink()
    old = out.with_name(f".{out.name}.old")
    discard(old)
    if out.exists():
        out.rename(old)
    partial.rename(out)
    discard(old)


def discard(path: Path) -> None:
    """Delete a folder or a link, if there is one; what a link points to stays."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path, on_wait: Callable[[], None], *, exclusive: bool) -> Iterator[None]:
    """Hold a folder that runs share: one process makes it, or any number read it. Waits; says so once by `on_wait`.

    The lock is the kernel's, so a killed holder leaves none behind. Its file `.NAME.lock` lies beside the folder, which
    need not exist, and is never deleted: two holders of two files of that name would not see each other.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("a") as lock:
        if not _try_lock(lock, exclusive=exclusive):
            on_wait()
            while not _try_lock(lock, exclusive=exclusive):
                time.sleep(LOCK_POLL_SECONDS)
        yield


def _try_lock(lock: TextIO, *, exclusive: bool) -> bool:
    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
