"""Which worker owns a session: a pure function of the session's name and the number of workers.

Rendezvous hashing: each slot draws a number from the name and the highest one owns the session. So every worker knows
the owner without a table, and one more slot moves only the sessions that the new slot wins.
"""

import logging
from hashlib import blake2b
from pathlib import Path

from ..journal import SUFFIX, free_path

logger = logging.getLogger(__name__)

TWIN_SUFFIX = ".twin"
"""Added to the name of a journal in whose place another one lies."""


def owner_of(session_id: str, slots: int) -> int:
    """The slot that owns a session."""
    return max(range(slots), key=lambda slot: _draw(slot, session_id))


def slot_directory(journal_directory: Path, slot: int) -> Path:
    """Where a slot keeps its sessions' journals."""
    return journal_directory / f"slot-{slot}"


def redistribute(journal_directory: Path, slots: int) -> int:
    """Move the journals of sessions that another slot owns now, and say how many; nobody may be working on them.

    Without slots all of them are a single process's. So a folder may be taken over by a fleet of another size, and by
    or from a single process. Moving is renaming, so a kill in the middle leaves each journal in one place, and the next
    start finishes the job. A journal is never written over: of two of one name the owner's stays and the other is set
    aside, with its path in the log.
    """
    moved = 0
    for path in [*journal_directory.glob(f"*{SUFFIX}"), *journal_directory.glob(f"slot-*/*{SUFFIX}")]:
        home = _home(journal_directory, path.name.removesuffix(SUFFIX), slots)
        if path.parent != home:
            home.mkdir(parents=True, exist_ok=True)
            _move(path, home / path.name)
            moved += 1
    return moved


def _home(journal_directory: Path, session_id: str, slots: int) -> Path:
    return slot_directory(journal_directory, owner_of(session_id, slots)) if slots else journal_directory


def _move(path: Path, wanted: Path) -> None:
    if wanted.exists():
        aside = free_path(wanted.with_name(wanted.name + TWIN_SUFFIX))
        logger.error("%s and %s are of one session: the first is set aside as %s", path, wanted, aside)
        wanted = aside
    path.rename(wanted)


def _draw(slot: int, session_id: str) -> bytes:
    return blake2b(session_id.encode("utf-8", "replace"), digest_size=8, salt=slot.to_bytes(16, "little")).digest()
