"""What an agent changed, as data: pure, from two listings of a working folder to a patch and back to a tar stream.

A change pairs what the untouched folder holds at a path with what the agent's holds there. Only differences in kind,
permission bits or content are changes. Links that lead out of the folder are not taken, and named; so is what is too
large or compiled, but where it would stand for something of the untouched folder, nothing is taken at all.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from agentic.rollout.errors import ChangesRefusedError
from agentic.rollout.grading.tree import Entry, Kind, Limits, Listing, Node, folders_above, is_compiled
from agentic.sandbox.transfer import stays_inside

MODE_BITS = 0o777


@dataclass(frozen=True, slots=True)
class Change:
    """One path before and after; None is absent. A folder appears only when it is new and empty, or gone."""

    path: str
    old: Node | None
    new: Node | None


def needed_paths(agent: Listing) -> list[str]:
    """Whose untouched contents have to be known."""
    return sorted(agent.nodes)


def gone_paths(untouched: Listing, agent: Listing) -> list[str]:
    """What the agent's folder no longer has, as files and links."""
    return sorted(
        path for path, entry in untouched.entries.items() if path not in agent.entries and entry.kind is not Kind.FOLDER
    )


def wanted_paths(untouched: Listing, agent: Listing, moved: Iterable[str], limits: Limits) -> list[str]:
    """Of the contents that a comparison can use, as many as the limits allow, the needed ones first."""
    wanted: list[str] = []
    total = 0
    for path in dict.fromkeys([*needed_paths(agent), *moved, *gone_paths(untouched, agent)]):
        entry = untouched.entries.get(path)
        if entry is None or entry.kind is Kind.FOLDER or entry.size_bytes >= limits.file_bytes:
            continue
        total += entry.size_bytes
        if total > limits.total_bytes or len(wanted) >= limits.files:
            break
        wanted.append(path)
    return wanted


def compare(untouched: Listing, agent: Listing) -> tuple[list[Change], list[str]]:
    """The changes by path, and what was not taken. Raises ChangesRefusedError when that would change what something of
    the untouched folder is. `untouched` holds the contents of `wanted_paths`."""
    changes: dict[str, Change] = {}
    left_out = _left_out(untouched, agent)
    for path, new in agent.nodes.items():
        if path not in agent.entries:
            continue
        old = untouched.nodes.get(path)
        if (
            new.kind is Kind.LINK
            and new != old
            and not stays_inside(PurePosixPath(path), new.content.decode(errors="surrogateescape"))
        ):
            left_out.append(path)
        elif new != old:
            changes[path] = Change(path, old, new)
    for path in gone_paths(untouched, agent):
        changes[path] = Change(path, untouched.nodes.get(path), None)
    changes |= {change.path: change for change in _folders(untouched, agent)}
    return [changes[path] for path in sorted(changes)], sorted(left_out)


def _left_out(untouched: Listing, agent: Listing) -> list[str]:
    for path in agent.dropped:
        if path in untouched.entries and not is_compiled(path):
            raise ChangesRefusedError(
                f"{path!r} was changed and has {agent.entries[path].size_bytes} bytes, or too much else was changed "
                "beside it: it cannot be taken, and the task's own would stand for it"
            )
    return list(dict.fromkeys(agent.dropped.values()))


def _folders(untouched: Listing, agent: Listing) -> Iterator[Change]:
    """New empty folders, and folders that are gone."""
    parents = {parent for path in agent.entries for parent in folders_above(path)}
    for path, entry in agent.entries.items():
        is_empty = entry.kind is Kind.FOLDER and path not in parents and path not in agent.dropped
        if is_empty and path and path not in untouched.entries:
            yield Change(path, None, Node(Kind.FOLDER, entry.mode & MODE_BITS, b""))
    for path, entry in untouched.entries.items():
        if entry.kind is Kind.FOLDER and path and path not in agent.entries:
            yield Change(path, Node(Kind.FOLDER, entry.mode & MODE_BITS, b""), None)


def removed_paths(changes: Iterable[Change], untouched: Listing) -> list[str]:
    """What has to go before the new contents come: whatever lies at a changed path, and links or files where folders
    will be. Then nothing that is unpacked can follow a link."""
    found = set()
    for change in changes:
        if change.path in untouched.entries:
            found.add(change.path)
        if change.new is not None:
            above = ((path, untouched.entries.get(path)) for path in folders_above(change.path))
            found |= {path for path, entry in above if entry is not None and entry.kind is not Kind.FOLDER}
    return sorted(found)


def add_changes(archive: tarfile.TarFile, changes: Sequence[Change], untouched: Listing, prefix: str) -> None:
    """The new contents as members of a tar stream, links last; owners as before, or those of the nearest folder."""
    new = [(change.path, change.new) for change in changes if change.new is not None]
    for path, node in sorted(new, key=lambda item: item[1].kind is Kind.LINK):
        member = _member(path, node, untouched.entries)
        member.name = prefix + path
        archive.addfile(member, io.BytesIO(node.content))


def _member(path: str, node: Node, entries: Mapping[str, Entry]) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode = node.mode
    member.uid, member.gid = _owner(path, entries)
    match node.kind:
        case Kind.FILE:
            member.size = len(node.content)
        case Kind.LINK:
            member.type, member.linkname = tarfile.SYMTYPE, node.content.decode(errors="surrogateescape")
        case Kind.FOLDER:
            member.type = tarfile.DIRTYPE
    return member


def _owner(path: str, entries: Mapping[str, Entry]) -> tuple[int, int]:
    for place in (path, *reversed(folders_above(path)), ""):
        if place in entries:
            return entries[place].owner
    return (0, 0)
