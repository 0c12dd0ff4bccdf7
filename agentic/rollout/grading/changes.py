"""What an agent changed, as data: pure, from two listings of a working folder to a patch and back to a tar stream.

A change pairs what the untouched folder holds at a path with what the agent's holds there. Only differences in kind,
permission bits or content are changes. Links that lead out of the folder are not taken, and named.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentic.rollout.grading.tree import Entry, Kind, Listing, Node, stays_inside

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


def compare(untouched: Listing, agent: Listing) -> tuple[list[Change], list[str]]:
    """The changes by path, and the links that were not taken because they lead out of the folder.

    `untouched` holds the contents of `needed_paths` and `gone_paths`.
    """
    changes: dict[str, Change] = {}
    left_out = []
    for path, new in agent.nodes.items():
        if path not in agent.entries:
            continue
        old = untouched.nodes.get(path)
        if (
            new.kind is Kind.LINK
            and new != old
            and not stays_inside(path, new.content.decode(errors="surrogateescape"))
        ):
            left_out.append(path)
        elif new != old:
            changes[path] = Change(path, old, new)
    for path in gone_paths(untouched, agent):
        changes[path] = Change(path, untouched.nodes.get(path), None)
    changes |= {change.path: change for change in _folders(untouched, agent)}
    return [changes[path] for path in sorted(changes)], sorted(left_out)


def _folders(untouched: Listing, agent: Listing) -> Iterator[Change]:
    """New empty folders, and folders that are gone."""
    parents = {parent for path in agent.entries for parent in parents_of(path)}
    for path, entry in agent.entries.items():
        if entry.kind is Kind.FOLDER and path and path not in parents and path not in untouched.entries:
            yield Change(path, None, Node(Kind.FOLDER, entry.mode & MODE_BITS, b""))
    for path, entry in untouched.entries.items():
        if entry.kind is Kind.FOLDER and path and path not in agent.entries:
            yield Change(path, Node(Kind.FOLDER, entry.mode & MODE_BITS, b""), None)


def parents_of(path: str) -> list[str]:
    """Every folder above a path, the outermost first; not the working folder itself."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def removed_paths(changes: Iterable[Change], untouched: Listing) -> list[str]:
    """What has to go before the new contents come: whatever lies at a changed path, and links or files where folders
    will be. Then nothing that is unpacked can follow a link."""
    found = set()
    for change in changes:
        if change.path in untouched.entries:
            found.add(change.path)
        if change.new is not None:
            above = ((path, untouched.entries.get(path)) for path in parents_of(change.path))
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
    for place in (path, *reversed(parents_of(path)), ""):
        if place in entries:
            return entries[place].owner
    return (0, 0)
