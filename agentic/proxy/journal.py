"""Where a session's events go before anybody is told about them.

A record is one line: CRC-32 of the rest in hexadecimal, a space, the event as JSON. A file cut at any byte, or with a
damaged record, gives the records before that place (invariant 10): a line counts only if it is whole and its sum is
right, and reading stops at the first that is not. One file a session, so sessions cannot disturb each other and
dropping one is removing its file.
"""

import asyncio
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from .errors import JournalError
from .events import EVENTS, SCHEMA_VERSION, Event, Opened

SUFFIX = ".journal"


class Journal(Protocol):
    """Keeps the events of sessions in order."""

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        """Write events after those already there; when this returns they count as acknowledged.

        Calls for one session never overlap. Raises JournalError if they cannot be written; then none of them counts.
        """
        ...

    async def read(self, session_id: str) -> list[Event]:
        """All acknowledged events of a session, and none that was cut; empty if there is no such session."""
        ...

    async def session_ids(self) -> list[str]:
        """Sessions that have a record."""
        ...

    async def remove(self, session_id: str) -> None:
        """Forget a session; harmless if there is none."""
        ...


class MemoryJournal:
    """Keeps events in memory: nothing survives the process."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        """Keep the events."""
        self._events.setdefault(session_id, []).extend(events)

    async def read(self, session_id: str) -> list[Event]:
        """The events kept."""
        return list(self._events.get(session_id, []))

    async def session_ids(self) -> list[str]:
        """Sessions with events."""
        return sorted(self._events)

    async def remove(self, session_id: str) -> None:
        """Forget them."""
        self._events.pop(session_id, None)


class FileJournal:
    """One append-only file a session."""

    def __init__(self, directory: Path, fsync: bool) -> None:
        self._directory = directory
        self._fsync = fsync

    async def append(self, session_id: str, events: Sequence[Event]) -> None:
        """Write the events; with fsync, off the event loop, wait until they are on disk."""
        data = b"".join(encode_record(event) for event in events)
        if self._fsync:
            await asyncio.to_thread(self._write, session_id, data)
        else:
            self._write(session_id, data)

    async def read(self, session_id: str) -> list[Event]:
        """The committed beginning of the session's file; what follows it is cut off, so appending can go on."""
        path = self._path(session_id)
        if not path.is_file():
            return []
        data = path.read_bytes()
        events, whole = decode_records(data)
        if whole < len(data):
            os.truncate(path, whole)
        return events

    async def session_ids(self) -> list[str]:
        """Sessions that have a file."""
        if not self._directory.is_dir():
            return []
        return sorted(path.name.removesuffix(SUFFIX) for path in self._directory.glob(f"*{SUFFIX}"))

    async def remove(self, session_id: str) -> None:
        """Remove the session's file."""
        self._path(session_id).unlink(missing_ok=True)

    def _path(self, session_id: str) -> Path:
        return self._directory / f"{session_id}{SUFFIX}"

    def _write(self, session_id: str, data: bytes) -> None:
        path = self._path(session_id)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                self._write_whole(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise JournalError(
                f"cannot write {path}: {error.strerror}: free space or change journal_directory"
            ) from error

    def _write_whole(self, descriptor: int, data: bytes) -> None:
        start = os.fstat(descriptor).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if self._fsync:
                os.fsync(descriptor)
        except OSError:
            # A torn record would hide every later one.
            os.ftruncate(descriptor, start)
            raise


def encode_record(event: Event) -> bytes:
    """One event as a line."""
    body = EVENTS.dump_json(event)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode_records(data: bytes) -> tuple[list[Event], int]:
    """The whole, undamaged records at the beginning of `data`, and the bytes that they take."""
    events: list[Event] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        event = _decode_line(data[position:end])
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
        raise JournalError(f"a journal record is of another layout: {error.errors()[0]['msg']}") from error
    if isinstance(event, Opened) and event.schema_version > SCHEMA_VERSION:
        raise JournalError(f"journal layout {event.schema_version} is newer than {SCHEMA_VERSION}: upgrade the proxy")
    return event
