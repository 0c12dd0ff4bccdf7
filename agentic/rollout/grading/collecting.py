"""What lies in a sandbox's working folder, in one round trip: every entry, and the contents of those that matter.

Owned here: the script that runs inside, and reading what it answers. In the agent's sandbox it sends the contents of
what was changed since the sandbox began, by the kernel's change time, which nobody inside can set back; whether
something really differs is decided outside, byte by byte. In the fresh sandbox it sends the contents of given paths.
What is sent is a list and a tar archive, in pieces that fit a command's output; nothing is written inside, so that a
full disk stops nothing.

Never believes what it reads (see `tree.py`). `.git` and caches that programs make by themselves are left out.
"""

import asyncio
import io
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agentic.rollout.errors import ChangesRefusedError, GradingSetupError
from agentic.rollout.grading.tree import (
    COMPILED,
    Entry,
    Kind,
    Limits,
    Listing,
    Node,
    check_path,
    check_size,
    find_dropped,
)
from agentic.sandbox.base import ExecResult

LEFT_OUT = (
    "__pycache__",
    "*.pyc",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".tox",
    ".nox",
)
"""Names that no result consists of; compiled files could also stand for other sources than they lie beside."""

PIECE_BYTES = 512 * 1024
"""Of one answer: half of what sandboxes let a command print by default."""

LISTING_SECONDS = 120.0
"""How long an untouched folder's answers may take together; a repository of 50,000 files takes one second."""

LISTING_BYTES = 64 * 1024 * 1024
"""What a list of entries and an archive's padding may take besides the contents."""

_PRUNED = r"-xdev -name .git -printf '.\0' -prune -o \( @ \) -prune -o".replace(
    "@", " -o ".join(f"-name '{name}'" for name in LEFT_OUT)
)
_NOT_COMPILED = " ".join(f"! -name '*{ending}'" for ending in COMPILED)
SCRIPT = r"""
folder=$1 offset=$2 piece=$3 largest=$4 what=$5 since=0
[ -z "$folder" ] || cd "$folder" || exit 3
if [ "$what" = recent ] && read -r line < /proc/1/stat; then
  boot=0
  while read -r key value rest; do [ "$key" = btime ] && boot=$value && break; done < /proc/stat
  set -f; set -- ${line##*) }; set +f
  since=$((boot + ${20} / 100 - 2))
fi
archive() {
  tar -cf - --no-recursion --hard-dereference --ignore-failed-read --null --verbatim-files-from -T - 2> /dev/null
}
send() {
  pwd -P
  find . @PRUNED@ \( \( -newerct "@$since" -printf + \) , -printf '%y %m %U %G %s %P\0' \)
  printf '\0'
  case $what in
    recent)
      find . @SELECTED@ \( -type f -size "-${largest}c" @NOT_COMPILED@ -o -type l \) -newerct "@$since" \
        -printf '%P\0' | archive ;;
    chosen) archive ;;
  esac
}
if [ "$offset" = 1 ]; then send | head -c "$piece"; else send | tail -c "+$offset" | head -c "$piece"; fi
""".replace("@PRUNED@", _PRUNED).replace("@SELECTED@", _PRUNED.replace("-printf '.\\0'", ""))
SCRIPT = SCRIPT.replace("@NOT_COMPILED@", _NOT_COMPILED)
LARGEST_BYTES = 1 << 63
"""No file system has a file of that size."""
REPOSITORY = b"."
"""The line that stands for each `.git`."""


class Runs(Protocol):
    """Where commands run: a sandbox, seen through a trial's environment."""

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> ExecResult:
        """As root, to the end; see `Sandbox.exec`."""


async def list_recent(sandbox: Runs, folder: str, limits: Limits, seconds: float) -> Listing:
    """The agent's folder, with what was changed and can be taken. Raises ChangesRefusedError when it cannot be taken,
    or does not come out in this time."""
    ends = time.monotonic() + seconds
    listing = await _ask(sandbox, folder, Question("recent", ends), limits)
    dropped = await asyncio.to_thread(find_dropped, listing.entries, limits)
    listing = replace(listing, dropped=dropped)
    check_size(listing, limits)
    if _is_too_much(listing.entries, limits):
        kept = [path for path, entry in listing.entries.items() if entry.is_recent and path not in dropped]
        files = [path for path in kept if listing.entries[path].kind is not Kind.FOLDER]
        chosen = await _ask(sandbox, folder, Question("chosen", ends, _names(files)), limits) if files else None
        listing = replace(listing, nodes=chosen.nodes if chosen is not None else {})
    taken = {path: node for path, node in listing.nodes.items() if path not in dropped}
    unread = {
        path: path
        for path, entry in listing.entries.items()
        if entry.is_recent and entry.kind is not Kind.FOLDER and path not in taken
    }
    return replace(listing, nodes=taken, dropped={**unread, **dropped})


async def list_chosen(sandbox: Runs, folder: str, paths: Iterable[str], limits: Limits) -> Listing:
    """The untouched folder, with the contents of these paths. Raises GradingSetupError when the image cannot answer."""
    names = _names(paths)
    question = Question("chosen" if names else "names", time.monotonic() + LISTING_SECONDS, names)
    try:
        return await _ask(sandbox, folder, question, limits)
    except ChangesRefusedError as error:
        raise GradingSetupError(
            f"the task's image cannot tell what is in its working folder ({error}): it needs a WORKDIR, GNU find "
            "and tar; or say metadata.grading.mode and reason in task.toml"
        ) from error


async def check_answers(sandbox: Runs) -> None:
    """Raises GradingSetupError when no sandbox could send what the agent's did not."""
    result = await sandbox.run(("head", "-c", str(PIECE_BYTES), "/dev/zero"), timeout_seconds=LISTING_SECONDS)
    if result.truncated or len(result.stdout) != PIECE_BYTES:
        raise GradingSetupError(
            f"an answer of {PIECE_BYTES} bytes does not arrive whole: raise sandbox.output_limit_bytes"
        )


def _names(paths: Iterable[str]) -> bytes:
    return b"".join(path.encode(errors="surrogateescape") + b"\0" for path in paths)


def _is_too_much(entries: Mapping[str, Entry], limits: Limits) -> bool:
    """Whether what the script would send by itself is more than is taken."""
    sent = [entry for entry in entries.values() if entry.is_recent and entry.kind is not Kind.FOLDER]
    recent = [entry for entry in sent if entry.size_bytes < limits.file_bytes]
    return len(recent) > limits.files or sum(entry.size_bytes for entry in recent) > limits.total_bytes


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a sandbox."""

    what: Literal["recent", "chosen", "names"]
    ends: float
    """When the last answer has to be there, by the monotonic clock."""
    stdin: bytes = b""


async def _ask(sandbox: Runs, folder: str, question: Question, limits: Limits) -> Listing:
    """Of recent files too many or too large to be taken, the list alone."""
    data = bytearray()
    listing: Listing | None = None
    while True:
        words = (folder, str(len(data) + 1), str(PIECE_BYTES), str(limits.file_bytes), question.what)
        seconds = question.ends - time.monotonic()
        if seconds <= 0:
            raise ChangesRefusedError("its working folder could not be read in time")
        result = await sandbox.run(
            ("/bin/sh", "-c", SCRIPT, "sh", *words), stdin=question.stdin, timeout_seconds=seconds
        )
        _check_answer(result)
        looked_at = max(len(data) - 1, 0)
        data += result.stdout
        if question.what == "recent" and listing is None and (end := data.find(b"\0\0", looked_at)) >= 0:
            listing = await asyncio.to_thread(read_head, bytes(data[:end]), limits)
            if _is_too_much(listing.entries, limits):
                return listing
        if len(data) > limits.total_bytes + LISTING_BYTES:
            raise ChangesRefusedError(f"more than {limits.total_bytes + LISTING_BYTES} bytes came out")
        if len(result.stdout) < PIECE_BYTES:
            return await asyncio.to_thread(read_listing, bytes(data), limits)


def _check_answer(result: ExecResult) -> None:
    if result.timed_out or result.exit_code != 0:
        reason = f"exit code {result.exit_code}: {result.error_text.strip()[-200:]}"
        raise ChangesRefusedError(f"its working folder could not be read ({reason})")
    if result.truncated:
        raise ChangesRefusedError(f"an answer of {PIECE_BYTES} bytes did not arrive whole")


def read_listing(data: bytes, limits: Limits) -> Listing:
    """A listing from what the script sent. Raises ChangesRefusedError for what it cannot have sent."""
    head, found, archive = data.partition(b"\0\0")
    if not found:
        raise ChangesRefusedError("its working folder's list is not whole")
    return replace(read_head(head, limits), nodes=dict(_nodes(archive, limits)) if archive else {})


def read_head(head: bytes, limits: Limits) -> Listing:
    """The entries alone. Raises ChangesRefusedError, also for more of them than are taken."""
    if (count := head.count(b"\0") + 1) > limits.entries:
        raise ChangesRefusedError(f"its working folder has {count} entries and {limits.entries} are read at most")
    folder, newline, rows = head.partition(b"\n")
    if not newline:
        raise ChangesRefusedError("its working folder's list is not whole")
    lines = [row for row in rows.split(b"\0") if row]
    entries = dict(_entry(row) for row in lines if row != REPOSITORY)
    known = {path: entry for path, entry in entries.items() if entry is not None}
    return Listing(folder.decode(errors="surrogateescape"), known, has_repository=REPOSITORY in lines)


def _entry(row: bytes) -> tuple[str, Entry | None]:
    """None for what is neither file, folder nor link."""
    words = row.decode(errors="surrogateescape").split(" ", 5)
    try:
        kind, mode, user, group, size, path = words
        if path:
            check_path(path)
        entry = Entry(Kind(kind[-1:]), int(mode, 8), (int(user), int(group)), int(size), is_recent=kind.startswith("+"))
        if not 0 <= entry.size_bytes < LARGEST_BYTES:
            raise ValueError(f"no file has {size} bytes")
    except ValueError:
        if len(words) == 6 and words[0].lstrip("+") in ("p", "s", "b", "c"):
            return words[5], None
        raise ChangesRefusedError(f"its working folder's list has a line that cannot be read: {row[:80]!r}") from None
    return path, entry


def _nodes(archive: bytes, limits: Limits) -> Iterable[tuple[str, Node]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:", errors="surrogateescape") as members:
            for number, member in enumerate(members):
                if number > limits.files:
                    raise ChangesRefusedError(f"more than {limits.files} files and links came out")
                if member.size >= limits.file_bytes or member.issparse():
                    raise ChangesRefusedError(f"{member.name!r} came out with {member.size} bytes or with holes")
                node = _node(members, member)
                if node is not None:
                    check_path(member.name)
                    yield member.name, node
    except (tarfile.TarError, KeyError, ValueError, OverflowError, RecursionError, OSError) as error:
        # Besides damage: links to what is not there or to links without end, numbers that are none.
        raise ChangesRefusedError(f"what came out of its working folder is damaged: {error}") from error


def _node(members: tarfile.TarFile, member: tarfile.TarInfo) -> Node | None:
    if member.issym():
        return Node(Kind.LINK, 0o777, member.linkname.encode(errors="surrogateescape"))
    if not member.isreg() and not member.islnk():
        return None
    content = members.extractfile(member)
    return Node(Kind.FILE, member.mode & 0o777, content.read() if content is not None else b"")
