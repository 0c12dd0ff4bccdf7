"""Files below a working folder as data, and the bounds on what is taken of them.

A `Listing` is what a sandbox says about its folder: every entry by its path, and the contents of some. It may come from
a sandbox whose tools the agent has replaced, so nothing here believes it: paths that are not plain relative ones are
refused, and so is more than the limits allow where it is not left out: large new files and folders are no source, and
compiled code could stand for other sources than it lies beside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agentic.rollout.errors import ChangesRefusedError

COMPILED = (".so", ".pyd", ".dylib", ".o")
"""Endings of what is never taken along."""

PATH_BYTES = 3000
NAME_BYTES = 255
"""The longest path that is taken, and part of one: the kernel takes 4,096 bytes, the working folder's included."""


class Kind(StrEnum):
    """What a path is, in the letters of `find`."""

    FILE = "f"
    FOLDER = "d"
    LINK = "l"


@dataclass(frozen=True, slots=True)
class Limits:
    """What may come out of the agent's folder."""

    entries: int = 1_000_000
    """Rows of a listing; what lies there unchanged counts too, so this is more than any task's folder has."""
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
    dropped: Mapping[str, str] = field(default_factory=dict)
    """What was changed there and is not taken: its path, and how to name it."""


def check_path(path: str) -> None:
    """Raises ChangesRefusedError for a path that is not a plain one below the folder."""
    parts = path.split("/")
    if path.startswith("/") or not all(parts) or not {".", "..", ".git"}.isdisjoint(parts) or "\0" in path:
        raise ChangesRefusedError(f"the sandbox names a path that leads out of the working folder: {path[:200]!r}")
    if len(path) * 4 > NAME_BYTES and _is_too_long(path, parts):
        raise ChangesRefusedError(f"a path is longer than {PATH_BYTES} bytes: {path[:200]!r}...")


def _is_too_long(path: str, parts: list[str]) -> bool:
    sizes = [len(part.encode(errors="surrogateescape")) for part in (path, *parts)]
    return sizes[0] > PATH_BYTES or max(sizes[1:]) > NAME_BYTES


def is_compiled(path: str) -> bool:
    """Whether a path names compiled code."""
    return path.endswith(COMPILED)


def find_dropped(entries: Mapping[str, Entry], limits: Limits) -> dict[str, str]:
    """What is changed and not taken: compiled code, files that are too large, and, where all together is too much, the
    largest folders in which everything is new."""
    recent = {path: entry for path, entry in entries.items() if entry.is_recent and entry.kind is not Kind.FOLDER}
    dropped = {
        path: path
        for path, entry in recent.items()
        if entry.kind is Kind.FILE and (is_compiled(path) or entry.size_bytes >= limits.file_bytes)
    }
    count = len(recent) - len(dropped)
    total = sum(entry.size_bytes for path, entry in recent.items() if path not in dropped)
    if count <= limits.files and total <= limits.total_bytes:
        return dropped
    groups = _new_folders(entries)
    sizes = {name: sum(recent[path].size_bytes for path in paths if path in recent) for name, paths in groups.items()}
    order = sorted(groups, key=lambda name: -max(len(groups[name]) / limits.files, sizes[name] / limits.total_bytes))
    for name in order:
        if count <= limits.files and total <= limits.total_bytes:
            break
        left = [path for path in groups[name] if path in recent and path not in dropped]
        count, total = count - len(left), total - sum(entries[path].size_bytes for path in left)
        dropped |= dict.fromkeys(groups[name], f"{name}/")
    return dropped


def _new_folders(entries: Mapping[str, Entry]) -> dict[str, list[str]]:
    """The topmost folders in which everything is recent, with all that they hold, themselves included."""
    old = {""}
    for path, entry in entries.items():
        if not entry.is_recent:
            old |= {path, *folders_above(path)}
    groups: dict[str, list[str]] = {}
    for path, entry in entries.items():
        top = next((place for place in (*folders_above(path), path) if place not in old), "")
        if top and (top != path or entry.kind is Kind.FOLDER):
            groups.setdefault(top, []).append(path)
    return groups


def folders_above(path: str) -> list[str]:
    """Every folder above a path, the outermost first; not the working folder itself."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def check_size(listing: Listing, limits: Limits) -> None:
    """Raises ChangesRefusedError when what is recent and not dropped is too much to be taken."""
    taken = [(path, entry) for path, entry in listing.entries.items() if path not in listing.dropped]
    if (folders := sum(entry.is_recent and entry.kind is not Kind.FILE for _, entry in taken)) > limits.files:
        raise ChangesRefusedError(f"{folders} folders and links were changed and {limits.files} are taken at most")
    recent = [(path, entry) for path, entry in taken if entry.is_recent and entry.kind is Kind.FILE]
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
