"""Where a session's events go before anybody is told about them.

A record is one line: CRC-32 of the rest in hexadecimal, a space, the event as JSON. A file cut at any byte, or with a
damaged record, gives the records before that place (invariant 10): a line counts only if it is whole and its sum is
right, and reading stops at the first that is not. One file a session, so sessions cannot disturb each other and
dropping one is removing its file.

With fsync, records of many sessions that are written at the same time are brought to the disk at the same time, in a
few threads, so the file system commits them together. A record that could not be written whole is cut off again, at the
latest before the next one: it must not hide those after it.
"""

import asyncio
import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from .errors import DamagedJournal, JournalError
from .events import EVENTS, SCHEMA_VERSION, Event, Opened, Sealed
from .models import SESSION_ID

SUFFIX = ".journal"
DAMAGED_SUFFIX = ".damaged"
"""Added to the name of a file that is set aside."""
SEAL_BYTES = 1024
"""Where a seal is looked for at the end of a file; it takes some 200 bytes."""
SYNC_THREADS = 8
"""How many records are on their way to the disk at a time; each waits there, so they need no cores."""


class Journal(Protocol):
    """Keeps the events of sessions in order."""

    keeps: bool
    """Whether `read` gives back what was appended, so that a sealed session may leave memory."""

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        """Write events after those already there; when this returns they count as acknowledged.

        Calls for one session never overlap. `is_durable` False may leave them to be lost by a crash of the machine,
        until a later durable call. Raises JournalError if they cannot be written; then none of them counts.
        """
        ...

    async def read(self, session_id: str) -> list[Event]:
        """All acknowledged events of a session, and none that was cut; empty if there is no such session."""
        ...

    async def session_ids(self) -> list[str]:
        """Sessions that have a record."""
        ...

    async def is_sealed(self, session_id: str) -> bool:
        """Whether the last record of a session is its seal; told without reading the others."""
        ...

    async def remove(self, session_id: str) -> None:
        """Forget a session; harmless if there is none."""
        ...

    async def set_aside(self, session_id: str) -> str:
        """Keep a damaged session's records out of the way of the next one of its name, and say where."""
        ...

    def place(self, session_id: str) -> str:
        """Where a session's records are, for a human."""
        ...


class NoJournal:
    """Keeps nothing: sessions live and die with the process."""

    keeps = False

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        """Nothing."""

    async def read(self, session_id: str) -> list[Event]:
        """Nothing."""
        return []

    async def session_ids(self) -> list[str]:
        """None."""
        return []

    async def is_sealed(self, session_id: str) -> bool:
        """No."""
        return False

    async def remove(self, session_id: str) -> None:
        """Nothing."""

    async def set_aside(self, session_id: str) -> str:
        """Nothing."""
        return self.place(session_id)

    def place(self, session_id: str) -> str:
        """Nowhere."""
        return f"session {session_id}, which is not journalled"


class MemoryJournal:
    """Keeps events in memory: nothing survives the process. The deterministic double of a file."""

    keeps = True

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        """Keep the events."""
        self._events.setdefault(session_id, []).extend(events)

    async def read(self, session_id: str) -> list[Event]:
        """The events kept."""
        return list(self._events.get(session_id, []))

    async def session_ids(self) -> list[str]:
        """Sessions with events."""
        return sorted(self._events)

    async def is_sealed(self, session_id: str) -> bool:
        """Whether the last event is."""
        return isinstance(self._events.get(session_id, [None])[-1], Sealed)

    async def remove(self, session_id: str) -> None:
        """Forget them."""
        self._events.pop(session_id, None)

    async def set_aside(self, session_id: str) -> str:
        """Forget them as well."""
        self._events.pop(session_id, None)
        return "nowhere"

    def place(self, session_id: str) -> str:
        """Memory."""
        return f"session {session_id} in memory"


class FileJournal:
    """One append-only file a session."""

    keeps = True

    def __init__(self, directory: Path, fsync: bool) -> None:
        self._directory = directory
        self._folder = f"{directory}{os.sep}"
        self._fsync = fsync
        self._threads = ThreadPoolExecutor(SYNC_THREADS, "journal") if fsync else None
        self._torn: dict[str, int] = {}
        """Where a record begins that is not whole and has to be cut off before the next one."""

    async def append(self, session_id: str, events: Sequence[Event], is_durable: bool = True) -> None:
        """Write the events; with fsync, off the event loop, wait until they are on disk."""
        data = b"".join(encode_record(event) for event in events)
        if self._threads is not None and is_durable:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._write, session_id, data, True)
        else:
            self._write(session_id, data, False)

    async def read(self, session_id: str) -> list[Event]:
        """The committed beginning of the session's file; what follows it is cut off before the next record."""
        path = self._path(session_id)
        if not path.is_file():
            return []
        data = path.read_bytes()
        events, whole = read_records(data)
        if whole < len(data):
            self._torn[session_id] = whole
        return events

    async def session_ids(self) -> list[str]:
        """Sessions that have a file."""
        if not self._directory.is_dir():
            return []
        names = (path.name.removesuffix(SUFFIX) for path in self._directory.glob(f"*{SUFFIX}"))
        return sorted(name for name in names if SESSION_ID.fullmatch(name))

    async def is_sealed(self, session_id: str) -> bool:
        """Whether the last line of the session's file is whole and a seal."""
        try:
            with self._path(session_id).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - SEAL_BYTES))
                *_, last, rest = b"\n", *file.read().split(b"\n")
        except OSError:
            return False
        try:
            return not rest and isinstance(_decode_line(last), Sealed)
        except JournalError:
            return False

    async def remove(self, session_id: str) -> None:
        """Remove the session's file."""
        self._torn.pop(session_id, None)
        self._path(session_id).unlink(missing_ok=True)

    async def set_aside(self, session_id: str) -> str:
        """Rename the session's file."""
        self._torn.pop(session_id, None)
        path = self._path(session_id)
        return str(path.rename(free_path(path.with_name(path.name + DAMAGED_SUFFIX))))

    def place(self, session_id: str) -> str:
        """The session's file."""
        return str(self._path(session_id))

    def _path(self, session_id: str) -> Path:
        return self._directory / f"{session_id}{SUFFIX}"

    def _write(self, session_id: str, data: bytes, is_synced: bool) -> None:
        path = f"{self._folder}{session_id}{SUFFIX}"  # a Path costs as much as the rest of a small record
        try:
            descriptor = self._open(path)
            try:
                is_new = self._append_whole(session_id, descriptor, data, is_synced)
            finally:
                os.close(descriptor)
            if is_synced and is_new:
                _sync_folder(self._directory)
        except OSError as error:
            raise JournalError(
                f"cannot write {path}: {error.strerror}: free space or change journal_directory"
            ) from error

    def _open(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)

    def _append_whole(self, session_id: str, descriptor: int, data: bytes, is_synced: bool) -> bool:
        """Append all or nothing; says whether the file was empty."""
        start = self._torn.get(session_id)
        if start is None:
            start = os.fstat(descriptor).st_size
        else:
            os.ftruncate(descriptor, start)
        self._torn[session_id] = start
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if is_synced:
                os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, start)  # a torn record would hide every later one
            del self._torn[session_id]
            raise
        del self._torn[session_id]
        return start == 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_path(path: Path) -> Path:
    """The path, with a number behind it if there is such a file already."""
    number, found = 1, path
    while found.exists():
        number, found = number + 1, path.with_name(f"{path.name}.{number + 1}")
    return found


def encode_record(event: Event) -> bytes:
    """One event as a line."""
    body = EVENTS.dump_json(event)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def read_records(data: bytes) -> tuple[list[Event], int]:
    """The records of a whole file. DamagedJournal if not even the first is one, although it was not cut within it."""
    events, whole = decode_records(data)
    if not events and b"\n" in data:
        raise DamagedJournal("the first record is damaged")
    return events, whole


def decode_records(data: bytes) -> tuple[list[Event], int]:
    """The whole, undamaged records at the beginning of `data`, and the bytes that they take.

    Raises DamagedJournal if what is whole is no record of ours.
    """
    events: list[Event] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        try:
            event = _decode_line(data[position:end])
        except JournalError as error:
            raise type(error)(f"record {len(events) + 1}: {error}") from error
        if event is None:
            break
        events.append(event)
        position = end + 1
    return events, position


def _decode_line(line: bytes) -> Event | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        event: Event = EVENTS.validate_json(body)
    except ValidationError as error:
        _refuse_newer(_layout_of(body))
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "record"
        raise DamagedJournal(f"{place} is of another layout than this proxy writes: {first['msg']}") from error
    if isinstance(event, Opened):
        _refuse_newer(event.schema_version)
    return event


def _refuse_newer(layout: int) -> None:
    if layout > SCHEMA_VERSION:
        raise JournalError(f"journal layout {layout} is newer than {SCHEMA_VERSION}: upgrade the proxy")


def _layout_of(body: bytes) -> int:
    """The layout that a record which is none of ours says that it has, else 0."""
    try:
        return int(json.loads(body)["schema_version"])
    except (ValueError, LookupError, TypeError):
        return 0
