"""The trials of a server: orders in, results out, nothing run twice.

What holds, whenever the process is killed: an order that was answered is on the disk; a trial is written down as
started before it starts, and one that was running when the server died is reported as lost, never run again; a result
that a client was told is on the disk too. A trial ends at the latest when nobody has asked for it for `lease_seconds`.

Knows no HTTP: refusals are `RefusedError`, whose code `app.py` turns into a status.
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

from agentic.errors import PermanentError
from agentic.rollout.errors import JournalError, TaskFolderError
from agentic.rollout.leases import Leases
from agentic.rollout.server.book import RESTARTED, Ending, Entry, read_rows, row_of, rows_of
from agentic.rollout.server.journal import Journal
from agentic.rollout.server.settings import ServerSettings
from agentic.rollout.server.tasks import TaskStore, variables_of
from agentic.rollout.server.wire import Capacity, Refusal, TrialEvent, TrialOrder, TrialState
from agentic.rollout.trial import TrialControl, TrialRequest, TrialResult, lost

_log = logging.getLogger(__name__)

CANCELLED = Ending("CancelledError", "cancelled on request")
GONE = Ending("ClientGone", "nobody has asked for this trial in a while: its client has died")
STOPPING = Ending("ServerStopping", "the trial server was stopped")

_TIDY_SECONDS = 30.0
_SPARE_LINES = 2000
"""The journal is rewritten when it holds more than twice what is needed, and so much on top."""


class RefusedError(Exception):
    """A request that is answered with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refuse(code: Any, message: str) -> RefusedError:
    """The exception to raise; `code` is one of `Refusal.code`."""
    return RefusedError(Refusal(code=code, message=message))


class Runner(TrialControl, Protocol):
    """What runs the trials; `TrialRunner` does."""

    async def sweep(self) -> None:
        """Remove sandboxes that a killed server left."""

    async def close(self) -> None:
        """End what runs."""


class TrialService:
    """One server's trials. `start` once, then orders, then `drain` and `close`."""

    def __init__(self, settings: ServerSettings, runner: Runner, journal: Journal, tasks: TaskStore) -> None:
        self._settings = settings
        self._runner = runner
        self._journal = journal
        self.tasks = tasks
        self._entries: dict[str, Entry] = {}
        self._open: set[str] = set()
        """Those of them that have not ended; a day's ended ones are many."""
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._leases = Leases(settings.lease_seconds)
        self._readers: dict[str, int] = {}
        self._draining = False
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the journal: report what was running as lost, sweep its sandboxes, go on with what was waiting."""
        self._entries = read_rows(self._journal.read())
        await self._runner.sweep()
        for entry in list(self._entries.values()):
            if entry.state is TrialState.STARTED:
                await self._end(entry, lost(entry.trial_id, RESTARTED, "the trial server was restarted while it ran"))
            elif entry.state is TrialState.ACCEPTED:
                self._begin(entry)
        await asyncio.to_thread(self._forget_folders, self._forget_old())
        self._journal.rewrite(self._rows)
        self._housekeeping = asyncio.create_task(self._keep_house())

    async def submit(self, order: TrialOrder, owner: str) -> tuple[Entry, bool]:
        """The trial of this order, and whether it is new. A repetition of the request gives the trial that there is."""
        entry = self._entries.get(order.trial_id)
        if entry is not None:
            if (entry.nonce, entry.owner) != (order.nonce, owner):
                raise refuse("taken", f"trial {order.trial_id!r} exists already: use another id")
            return await self._accepted(entry), False
        self._admit(order)
        entry = Entry(order.trial_id, order.nonce, order, owner)
        entry.move(TrialState.ACCEPTED, time.time())
        self._entries[order.trial_id] = entry
        self._open.add(order.trial_id)
        try:
            await self._journal.append(row_of(entry, entry.events[0]))
        except JournalError as error:
            del self._entries[order.trial_id]
            self._open.discard(order.trial_id)
            entry.ending = Ending("JournalError", str(error))
            entry.tell()
            raise refuse("busy", str(error)) from error
        entry.tell()
        self._begin(entry)
        return entry, True

    def find(self, trial_id: str, owner: str) -> Entry:
        """This owner's trial that was accepted and not yet forgotten; asking for it renews its lease. Another's is as
        unknown as one that is not there."""
        entry = self._entries.get(trial_id)
        if entry is None or not entry.told or entry.owner != owner:
            raise refuse("unknown_trial", f"trial {trial_id!r} is not known here, or no longer")
        if not entry.is_over:
            self._leases.renew(trial_id)
        return entry

    async def events(self, entry: Entry, after: int) -> AsyncIterator[TrialEvent]:
        """Events with higher numbers than `after`, as they come, until the last; signs of life between."""
        with self._reading(entry):
            until = time.monotonic() + self._settings.stream_seconds
            while True:
                while after < entry.told:  # Numbers count from 1, so `after` is the place of the next.
                    after += 1
                    yield entry.events[after - 1]
                if entry.is_over or self._draining or time.monotonic() > until:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.ping_seconds):
                        await entry.changed.wait()
                        continue
                self._leases.renew(entry.trial_id)
                yield TrialEvent(number=0, state=entry.events[entry.told - 1].state, unix_seconds=time.time())

    async def cancel(self, entry: Entry) -> None:
        """End a trial and its sandbox; returns when it has ended. Ended already: nothing."""
        self._stop(entry, CANCELLED)
        while not entry.is_over and not self._draining:
            await entry.changed.wait()

    def folder_of(self, entry: Entry) -> Path:
        """The folder that a trial left."""
        folder = self._settings.trials_dir / entry.trial_id
        if not entry.is_over or not folder.is_dir():
            raise refuse("no_folder", f"trial {entry.trial_id!r} has left no folder")
        return folder

    def capacity(self) -> Capacity:
        """What runs and waits."""
        states = [self._entries[trial_id].state for trial_id in self._open]
        return Capacity(
            concurrency=self._settings.concurrency,
            running=states.count(TrialState.STARTED),
            queue=self._settings.queue,
            queued=states.count(TrialState.ACCEPTED),
            state="draining" if self._draining else "serving",
        )

    async def drain(self) -> None:
        """Take no more orders, end what runs with its sandboxes, and let readers go. What waits stays written down for
        the next server."""
        self._draining = True
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        live = [self._entries[trial_id] for trial_id in self._open]
        for entry in live:
            self._stop(entry, STOPPING)
        await asyncio.gather(*(entry.work for entry in live if entry.work is not None), return_exceptions=True)
        for entry in self._entries.values():
            entry.wake()

    async def close(self) -> None:
        """Give up runner and journal, after `drain`."""
        await self._runner.close()
        await self._journal.close()

    def _admit(self, order: TrialOrder) -> None:
        settings = self._settings
        if self._draining:
            raise refuse("draining", "the trial server is stopping: ask again, another one may take its place")
        if problem := settings.check_environment(order.environment):
            raise refuse("not_allowed", problem)
        if problem := settings.check_lease(order.deadline_seconds):
            raise refuse("not_allowed", problem)
        if len(self._open) >= settings.concurrency + settings.queue:
            raise refuse("busy", f"{len(self._open)} trials run or wait here, which is all that fit: ask again later")
        folder = self.tasks.find(order.task)
        if folder is None:
            raise refuse("unknown_task", f"task {order.task[:12]} is not here: send its folder first")
        if hidden := sorted(variables_of(folder) - set(settings.task_variables)):
            message = f"the task asks for the variable {hidden[0]!r}, which this server gives no task (task_variables)"
            raise refuse("not_allowed", message)

    async def _accepted(self, entry: Entry) -> Entry:
        while not entry.told:
            await entry.changed.wait()
        if entry.ending is not None and entry.ending.exception == "JournalError":
            raise refuse("busy", entry.ending.message)
        return entry

    def _begin(self, entry: Entry) -> None:
        self._open.add(entry.trial_id)
        self._leases.renew(entry.trial_id)
        # Begun at once: a task that is cancelled before its first step would leave its entry open for ever.
        loop = asyncio.get_running_loop()
        entry.work = asyncio.Task(self._live(entry), loop=loop, name=f"trial-{entry.trial_id}", eager_start=True)

    async def _live(self, entry: Entry) -> None:
        try:
            async with self._slots:
                request = self._request(entry)
                await self._write(entry, entry.move(TrialState.STARTED, time.time()))
                result = await self._runner.run(request)
        except asyncio.CancelledError:
            if entry.ending is None or (entry.ending is STOPPING and entry.state is TrialState.ACCEPTED):
                raise
            result = lost(entry.trial_id, *entry.ending)
        except Exception as error:  # noqa: BLE001 - a trial that cannot be run has ended, and its client hears why
            if not isinstance(error, PermanentError):
                _log.exception("trial %s could not be run", entry.trial_id)
            result = lost(entry.trial_id, type(error).__name__, " ".join(str(error).split())[:400])
        await self._end(entry, result)

    def _request(self, entry: Entry) -> TrialRequest:
        order = entry.order
        if order is None:
            raise asyncio.CancelledError
        folder = self.tasks.find(order.task)
        if folder is None:
            raise TaskFolderError(f"task {order.task[:12]} was removed while trial {entry.trial_id!r} waited")
        values = order.model_dump(exclude={"task", "nonce"})
        return TrialRequest(**values, task_dir=str(folder), trials_dir=str(self._settings.trials_dir))

    async def _end(self, entry: Entry, result: TrialResult) -> None:
        self._leases.end(entry.trial_id)
        has_folder = (self._settings.trials_dir / entry.trial_id).is_dir()
        try:
            await self._write(entry, entry.move(TrialState.ENDED, time.time(), result, has_folder=has_folder))
        except JournalError as error:
            # Its client hears of it now; only a later server will not know.
            _log.error("the end of trial %s was not written down: %s", entry.trial_id, error)
            entry.tell()
        self._open.discard(entry.trial_id)

    async def _write(self, entry: Entry, event: TrialEvent | None) -> None:
        if event is not None:
            await self._journal.append(row_of(entry, event))
            entry.tell()

    def _stop(self, entry: Entry, ending: Ending) -> None:
        if entry.ending is None and entry.state is not TrialState.ENDED and entry.work is not None:
            entry.ending = ending
            entry.work.cancel()

    @contextlib.contextmanager
    def _reading(self, entry: Entry) -> Iterator[None]:
        trial_id = entry.trial_id
        self._readers[trial_id] = self._readers.get(trial_id, 0) + 1
        try:
            yield
        finally:
            self._readers[trial_id] -= 1
            if not self._readers[trial_id]:
                del self._readers[trial_id]
            if not entry.is_over:
                self._leases.renew(trial_id)

    async def _keep_house(self) -> None:
        tidied = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._settings.lease_seconds / 4))
            for trial_id in self._leases.expired():
                if trial_id not in self._readers:
                    self._leases.end(trial_id)
                    self._stop(self._entries[trial_id], GONE)
            if time.monotonic() - tidied > _TIDY_SECONDS:
                tidied = time.monotonic()
                try:
                    await asyncio.to_thread(self._forget_folders, self._forget_old())
                except OSError as error:  # Leases are looked after all the same, and it is tried again soon.
                    _log.warning("what has ended could not be tidied away: %s", error)

    def _forget_old(self) -> list[str]:
        oldest = time.time() - self._settings.record_seconds
        old = [
            trial_id
            for trial_id, entry in self._entries.items()
            if entry.is_over and entry.events[-1].unix_seconds < oldest
        ]
        for trial_id in old:
            del self._entries[trial_id]
        needed = sum(len(entry.events) for entry in self._entries.values())
        if self._journal.lines > 2 * needed + _SPARE_LINES:
            self._journal.rewrite(self._rows)
        return old

    def _forget_folders(self, trial_ids: list[str]) -> None:
        for trial_id in trial_ids:
            shutil.rmtree(self._settings.trials_dir / trial_id, ignore_errors=True)
        orders = [entry.order for entry in list(self._entries.values())]
        in_use = frozenset(order.task for order in orders if order is not None)
        self.tasks.remove_unused(self._settings.task_seconds, in_use)

    def _rows(self) -> Iterator[dict[str, Any]]:
        return rows_of(self._entries.values())
