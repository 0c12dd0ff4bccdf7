"""Which worker owns a session: a pure function of the session's name and the number of workers.

Rendezvous hashing: each slot draws a number from the name and the highest one owns the session. So every worker knows
the owner without a table, and one more slot moves only the sessions that the new slot wins.
"""

from hashlib import blake2b
from pathlib import Path

from ..journal import SUFFIX


def owner_of(session_id: str, slots: int) -> int:
    """The slot that owns a session."""
    return max(range(slots), key=lambda slot: _draw(slot, session_id))


def slot_directory(journal_directory: Path, slot: int) -> Path:
    """Where a slot keeps its sessions' journals."""
    return journal_directory / f"slot-{slot}"


def redistribute(journal_directory: Path, slots: int) -> int:
    """Move the journals of sessions that another slot owns now, and say how many; no worker may be running.

    A fleet may be started again with another number of workers, or over the folder of a single process. Moving is
    renaming, so a kill in the middle leaves each journal in one place, and the next start finishes the job.
    """
    moved = 0
    for path in [*journal_directory.glob(f"*{SUFFIX}"), *journal_directory.glob(f"slot-*/*{SUFFIX}")]:
        home = slot_directory(journal_directory, owner_of(path.name.removesuffix(SUFFIX), slots))
        if path.parent != home:
            home.mkdir(parents=True, exist_ok=True)
            path.rename(home / path.name)
            moved += 1
    return moved


def _draw(slot: int, session_id: str) -> bytes:
    return blake2b(session_id.encode("utf-8", "replace"), digest_size=8, salt=slot.to_bytes(16, "little")).digest()
