"""Files that came to their place with a folder that was renamed: the kernel marks the folder as changed, not what is in
it, so the agent's sandbox does not send them. What they hold is still in the untouched tree, where they were before.

Pure. Where a file came from is told by its name, kind, permissions and size, and by what is no longer where it was; of
several places the one whose path ends most like the new one. Places that could both be meant have to hold the same.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from agentic.rollout.errors import ChangesRefusedError
from agentic.rollout.grading.tree import Entry, Kind, Limits, Listing, Node

MOST_PLACES = 64
"""That are compared for one file."""

type Key = tuple[str, Kind, int, int]
type Sources = Mapping[str, Sequence[str]]
"""New path → where it may have been in the untouched tree."""


def find_sources(untouched: Listing, agent: Listing, limits: Limits) -> Sources:
    """For all that the agent's folder has, and neither the untouched one nor what was sent explains. Raises
    ChangesRefusedError when it is too much."""
    moved = [path for path, entry in agent.entries.items() if _is_unexplained(path, entry, untouched, agent)]
    if not moved:
        return {}
    if len(moved) > limits.files or sum(agent.entries[path].size_bytes for path in moved) > limits.total_bytes:
        raise ChangesRefusedError(f"{len(moved)} files were moved with their folder, which is more than can be taken")
    known: dict[Key, list[str]] = defaultdict(list)
    for path, entry in untouched.entries.items():
        if entry.kind is not Kind.FOLDER and not _is_where_it_was(path, entry, agent):
            for key in _keys(path, entry):
                known[key].append(path)
    return {path: _likeliest(path, agent.entries[path], known) for path in moved}


def _likeliest(path: str, entry: Entry, known: Mapping[Key, Sequence[str]]) -> Sequence[str]:
    places = next((known[key] for key in _keys(path, entry) if key in known), ())
    if entry.size_bytes == 0:
        return places[:1]
    return places if len(places) <= MOST_PLACES else ()


def with_moved(agent: Listing, untouched: Listing, sources: Sources) -> Listing:
    """The agent's folder with the contents of what was moved; `untouched` holds those of the sources. Raises
    ChangesRefusedError for what cannot be told."""
    nodes = {}
    for path, places in sources.items():
        contents = {untouched.nodes.get(place) for place in places}
        node = contents.pop() if len(contents) == 1 else None
        if node is None:
            raise ChangesRefusedError(
                f"{path!r} was moved with its folder, and {len(places)} places in the untouched folder could be where "
                "from: copied files can be taken"
            )
        nodes[path] = Node(node.kind, agent.entries[path].mode & 0o777, node.content)
    return replace(agent, nodes={**agent.nodes, **nodes}) if nodes else agent


def _is_unexplained(path: str, entry: Entry, untouched: Listing, agent: Listing) -> bool:
    if entry.kind is Kind.FOLDER or entry.is_recent or path in agent.nodes or path in agent.dropped:
        return False
    old = untouched.entries.get(path)
    return old is None or _traits(old) != _traits(entry)


def _is_where_it_was(path: str, entry: Entry, agent: Listing) -> bool:
    new = agent.entries.get(path)
    return new is not None and not new.is_recent and _traits(new) == _traits(entry)


def _traits(entry: Entry) -> tuple[Kind, int, int]:
    return entry.kind, entry.mode & 0o777, entry.size_bytes


def _keys(path: str, entry: Entry) -> Iterator[Key]:
    """A file's traits with the end of its path, the longest first."""
    names = path.split("/")
    for start in range(len(names)):
        yield ("/".join(names[start:]), *_traits(entry))
