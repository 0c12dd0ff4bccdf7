"""Files below a working folder as data, and the bounds on what is taken of them.

A `Listing` is what a sandbox says about its folder: every entry by its path, and the contents of some. It may come from
a sandbox whose tools the agent has replaced, so nothing here believes it: paths that are not plain relative ones are
refused, and so is more than the limits allow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from agentic.rollout.errors import ChangesRefusedError


class Kind(StrEnum):
    """What a path is, in the letters of `find`."""

    FILE = "f"
    FOLDER = "d"
    LINK = "l"


@dataclass(frozen=True, slots=True)
class Limits:
    """What may come out of the agent's folder."""

    files: int = 5000
    file_bytes: int = 8 * 1024 * 1024
    total_bytes: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a listing."""

    kind: Kind
    mode: int
    owner: tuple[int, int]
    size_bytes: int = 0
    is_recent: bool = False
    """Whether it, or its name, was changed since the sandbox began."""


@dataclass(frozen=True, slots=True)
class Node:
    """A file or a link with its content: bytes of a file, or where a link leads."""

    kind: Kind
    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """A working folder, seen from outside."""

    folder: str
    entries: Mapping[str, Entry]
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Those whose content was asked for."""
    has_repository: bool = False
    """Whether a `.git` lies anywhere in it."""


def check_path(path: str) -> None:
    """Raises ChangesRefusedError for a path that is not a plain one below the folder."""
    parts = path.split("/")
    if path.startswith("/") or not all(parts) or not {".", "..", ".git"}.isdisjoint(parts) or "\0" in path:
        raise ChangesRefusedError(f"the sandbox names a path that leads out of the working folder: {path!r}")


def check_size(listing: Listing, limits: Limits) -> None:
    """Raises ChangesRefusedError when the recent files are too many or too large to be taken."""
    recent = [(path, entry) for path, entry in listing.entries.items() if entry.is_recent and entry.kind is Kind.FILE]
    if len(recent) > limits.files:
        raise ChangesRefusedError(f"{len(recent)} files were changed and {limits.files} are taken at most")
    for path, entry in recent:
        if entry.size_bytes >= limits.file_bytes:
            raise ChangesRefusedError(
                f"{path!r} has {entry.size_bytes} bytes and files of less than {limits.file_bytes} are taken"
            )
    total = sum(entry.size_bytes for _, entry in recent)
    if total > limits.total_bytes:
        raise ChangesRefusedError(f"{total} bytes were changed and {limits.total_bytes} are taken at most")


def stays_inside(path: str, destination: str) -> bool:
    """Whether a link at this path can only lead to places below the working folder. A `..` after a name could climb
    from wherever another link leads to, so only leading ones count as safe."""
    target = PurePosixPath(destination)
    ups = sum(part == ".." for part in target.parts)
    depth = len(PurePosixPath(path).parts) - 1
    return not target.is_absolute() and all(part == ".." for part in target.parts[:ups]) and ups <= depth
