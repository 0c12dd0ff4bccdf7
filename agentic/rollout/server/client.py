"""`TrialControl` over a trial server: the trials of a trainer run elsewhere, with the results that they have here.

A trial is one order, repeated until it is answered, and one stream of events, opened again from the last event when it
breaks. A server that is busy is asked again when it says; one that gives no answer for `unreachable_seconds` has lost
the trial, which is infra and is tried again by the rollout. What is refused for good, such as a wrong key, raises: no
retry can help.

Belongs to the event loop that uses it. A task's folder is read, and sent if the server lacks it, once for each client.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import ValidationError

from agentic.rollout.errors import RolloutConfigError, TaskFolderError, TrialServerRefusal
from agentic.rollout.server.tasks import digest_of, pack_folder, receive_folder
from agentic.rollout.server.wire import Refusal, TrialEvent, TrialOrder, TrialState
from agentic.rollout.settings import RolloutSettings, TrialServerSettings
from agentic.rollout.trial import CLEANUP_SECONDS, TrialRequest, TrialResult, lost

_log = logging.getLogger(__name__)

_READ_SECONDS = 45.0
"""Between two lines of a stream; the server gives a sign of life every ten."""

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
"""Between two tries of a server that gave no answer."""

_ANSWER_SECONDS = 60.0
"""For the next bytes of anything else, either way. Nothing bounds the whole: a task or a folder may be large and the
link slow."""

_KEEP_SECONDS = 300.0
"""For the server to check and keep a task's folder that it has whole."""

_BLOCK_BYTES = 64 * 1024
"""Of a body that is sent at a time."""

_LINE_BYTES = 1 << 20
"""The longest line of a stream; aiohttp's own bound is 128 KiB."""
_FOLDER_BYTES = 1 << 30

_FOR_GOOD = frozenset({"not_allowed", "bad_task"})
_NO_ANSWER = (aiohttp.ClientError, HttpProcessingError, TimeoutError, ConnectionError, ValidationError)
"""What keeps a request from an answer that is the server's: the network, a middle man's words, or a line of a stream
that is too long."""


class _Refused(Exception):
    """The server's answer to a request that it did not grant."""

    def __init__(self, refusal: Refusal, wait_seconds: float | None) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code
        self.wait_seconds = wait_seconds


class _Lost(Exception):
    """The trial cannot be had from this server any more."""


class _Patience:
    """How long a silent server is still asked."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self.answered()

    def answered(self) -> None:
        """The server lives."""
        self._since = self._clock()
        self._wait_seconds = _FIRST_WAIT_SECONDS

    async def wait(self, error: Exception) -> None:
        """Before the next try. Raises _Lost when there has been no answer for too long."""
        silent = self._clock() - self._since
        if silent > self._seconds:
            raise _Lost(f"no answer for {silent:.0f} s: {type(error).__name__}: {error}") from error
        await asyncio.sleep(self._wait_seconds)
        self._wait_seconds = min(2 * self._wait_seconds, _LONGEST_WAIT_SECONDS)


class TrialServerControl:
    """See `TrialControl`. Makes its connections at the first call; `close` ends them."""

    def __init__(
        self, settings: TrialServerSettings, key: str | None = None, answer_seconds: float = _ANSWER_SECONDS
    ) -> None:
        """`key` defaults to the value of the environment variable that the settings name; `answer_seconds` is how long
        the next bytes of an answer may take."""
        self._settings = settings
        self._answer_seconds = answer_seconds
        self._key = key or os.environ.get(settings.key_variable) or None
        self._session: aiohttp.ClientSession | None = None
        self._digests: dict[str, asyncio.Task[str]] = {}
        self._uploads: dict[str, asyncio.Lock] = {}

    async def run(self, request: TrialRequest) -> TrialResult:
        """See `TrialControl.run`. Cancelling the caller ends the trial and its sandbox, and waits for that. Raises
        TrialServerRefusal when the server refuses this client or such trials for good."""
        try:
            order = await self._order(request)
        except (TaskFolderError, OSError) as error:
            return lost(request.trial_id, type(error).__name__, str(error))
        patience = _Patience(self._settings.unreachable_seconds)
        try:
            await self._submit(order, request, patience)
            event = await self._end_of(order, patience)
        except asyncio.CancelledError:
            await self._give_up(request.trial_id)
            raise
        except _Lost as error:
            return lost(request.trial_id, "TrialServerUnavailable", str(error))
        except _Refused as error:
            if error.code == "taken":
                return lost(request.trial_id, "DuplicateTrial", str(error))
            return lost(request.trial_id, "TrialServerUnavailable", str(error))
        except OSError as error:  # Of this machine's disk, which the task's folder is packed on.
            return lost(request.trial_id, type(error).__name__, f"the task could not be sent: {error}")
        if event.has_folder:
            await self._fetch_folder(request)
        if event.result is None:
            return lost(request.trial_id, "TrialServerUnavailable", "the server ended the trial without a result")
        return event.result

    async def cancel(self, trial_id: str) -> None:
        """See `TrialControl.cancel`."""
        with contextlib.suppress(_Refused, *_NO_ANSWER):
            await self._ask("DELETE", f"/v1/trials/{trial_id}")

    async def close(self) -> None:
        """End all connections; what still runs ends when its lease does. May be repeated."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _order(self, request: TrialRequest) -> TrialOrder:
        values = request.model_dump(exclude={"task_dir", "trials_dir"})
        return TrialOrder(**values, task=await self._digest(request.task_dir), nonce=uuid4().hex)

    async def _digest(self, folder: str) -> str:
        """Read once: a data set's tasks do not change while a run uses them. What kept one from being read may pass."""
        if folder not in self._digests:
            self._digests[folder] = asyncio.create_task(asyncio.to_thread(digest_of_task, Path(folder)))
        try:
            return await asyncio.shield(self._digests[folder])
        except (TaskFolderError, OSError):
            self._digests.pop(folder, None)
            raise

    async def _submit(self, order: TrialOrder, request: TrialRequest, patience: _Patience) -> None:
        body = order.model_dump(mode="json")
        while True:
            try:
                await self._ask("PUT", f"/v1/trials/{order.trial_id}", json=body)
            except _Refused as refused:
                if refused.code == "unknown_task":
                    await self._upload(order.task, request.task_dir, patience)
                elif refused.wait_seconds is not None:
                    patience.answered()
                    await asyncio.sleep(refused.wait_seconds)
                else:
                    raise
            except _NO_ANSWER as error:
                await patience.wait(error)
            else:
                patience.answered()
                return

    async def _upload(self, task: str, folder: str, patience: _Patience) -> None:
        """Send a task's folder. Those that come meanwhile wait, and then find it there."""
        async with self._uploads.setdefault(task, asyncio.Lock()):
            with contextlib.suppress(_Refused, *_NO_ANSWER):
                await self._ask("GET", f"/v1/tasks/{task}")
                return
            with tempfile.TemporaryFile() as archive:
                await asyncio.to_thread(pack_folder, Path(folder), archive)
                archive.seek(0)
                try:
                    await self._send(f"/v1/tasks/{task}", archive)
                except _NO_ANSWER as error:
                    await patience.wait(error)
                except _Refused as refused:
                    if refused.wait_seconds is None:
                        raise
                    patience.answered()
                    await asyncio.sleep(refused.wait_seconds)

    async def _send(self, path: str, file: IO[bytes]) -> None:
        """Raises TimeoutError when the server takes nothing more of it, or takes too long to keep it."""
        async with asyncio.timeout(self._answer_seconds) as limit:
            now = asyncio.get_running_loop().time

            async def blocks() -> AsyncIterator[bytes]:
                while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
                    limit.reschedule(now() + self._answer_seconds)
                    yield block
                limit.reschedule(now() + _KEEP_SECONDS)

            await self._ask("PUT", path, data=blocks(), timeout=aiohttp.ClientTimeout(total=None))

    async def _end_of(self, order: TrialOrder, patience: _Patience) -> TrialEvent:
        after = 0
        while True:
            try:
                async for event in self._events(order.trial_id, after):
                    patience.answered()
                    after = max(after, event.number)
                    if event.state is TrialState.ENDED:
                        return event
                await asyncio.sleep(_FIRST_WAIT_SECONDS)  # It stops, or has kept this connection long enough.
            except _NO_ANSWER as error:
                await patience.wait(error)

    async def _events(self, trial_id: str, after: int) -> AsyncIterator[TrialEvent]:
        path = f"/v1/trials/{trial_id}/events"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._answer_seconds, sock_read=_READ_SECONDS)
        async with self._request("GET", path, params={"after": str(after)}, timeout=timeout) as response:
            async for line in response.content:
                yield TrialEvent.model_validate_json(line)

    async def _give_up(self, trial_id: str) -> None:
        """The caller was cancelled: the trial and its sandbox end before that is passed on, if the server answers."""
        ending = asyncio.create_task(self.cancel(trial_id))
        await asyncio.wait({ending}, timeout=CLEANUP_SECONDS)
        ending.cancel()

    async def _fetch_folder(self, request: TrialRequest) -> None:
        """What the trial left there is put where it would lie had it run here; without it the result stands."""
        target = Path(request.trials_dir) / request.trial_id
        try:
            with tempfile.TemporaryFile() as archive:
                await self._download(f"/v1/trials/{request.trial_id}/folder", archive)
                await asyncio.to_thread(receive_folder, archive, target, _FOLDER_BYTES)
        except (_Refused, TrialServerRefusal, TaskFolderError, OSError, *_NO_ANSWER) as error:
            _log.warning("trial %s leaves no folder here: %s: %s", request.trial_id, type(error).__name__, error)

    async def _download(self, path: str, file: IO[bytes]) -> None:
        async with self._request("GET", path) as response:
            async for chunk in response.content.iter_chunked(1 << 20):
                file.write(chunk)
                if file.tell() > _FOLDER_BYTES:
                    raise TaskFolderError(f"the archive has more than {_FOLDER_BYTES} bytes")
        file.seek(0)

    async def _ask(self, method: str, path: str, **options: Any) -> bytes:
        async with self._request(method, path, **options) as response:
            return await response.read()

    @contextlib.asynccontextmanager
    async def _request(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        url = self._settings.url.rstrip("/") + path
        async with self._connections().request(method, url, **options) as response:
            if response.status >= 400:
                raise await _refusal_of(response)
            yield response

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # Each running trial holds a stream.
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._answer_seconds, sock_read=self._answer_seconds
                ),
                read_bufsize=_LINE_BYTES,
            )
        return self._session


def digest_of_task(folder: Path) -> str:
    """The content digest of a task's folder that has to be there."""
    if not folder.is_dir():
        raise TaskFolderError(f"{folder} is no folder of a task")
    return digest_of(folder)


def open_server(rollout: RolloutSettings) -> TrialServerControl:
    """The client that the settings ask for. Raises RolloutConfigError when they name no server."""
    if rollout.trial_server is None:
        raise RolloutConfigError("rollout.use_local_trial is false but rollout.trial_server.url is not set")
    return TrialServerControl(rollout.trial_server)


async def _refusal_of(response: aiohttp.ClientResponse) -> Exception:
    """What an answer that is no success means. One that is not ours, such as a gateway's 502, is no answer."""
    body = await response.read()
    try:
        refusal = Refusal.model_validate_json(body)
    except ValidationError:
        text = body.decode(errors="replace")[:200]
        if response.status == 422:
            return TrialServerRefusal(f"the trial server does not understand this client: {text}")
        return aiohttp.ClientError(f"status {response.status}: {text}")
    if refusal.code in _FOR_GOOD:
        return TrialServerRefusal(f"the trial server refuses: {refusal.message}")
    wait = response.headers.get("Retry-After")
    return _Refused(refusal, float(wait) if wait and wait.isdigit() else None)
