"""Ray's job API over HTTP, as its documentation has it: submit, look, read the log, stop.

A thin asynchronous client: a step's pod needs neither Ray nor its 200 MB for five calls. One instance speaks to one
head with the run's token. Every method may be repeated: a submission that had arrived although its answer was lost is
recognised by its id, stopping what has ended does nothing.

Never here: what a job's end means (`following.py`), or where the head is (its caller knows).
"""

import json
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentic.training.errors import HeadRefusedError, HeadUnreachableError

CALL_SECONDS = 30.0
"""For one call; a head whose CPUs all train takes seconds for some."""
LOG_CHUNK_BYTES = 16 * 1024 * 1024
"""Longest message of a log; Ray sends at most 20,000 characters at once."""
PING_SECONDS = 20.0
"""Between two signs of life on a log that says nothing."""
_SHOWN = 300


class JobStatus(StrEnum):
    """Ray's words."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_over(self) -> bool:
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


class RayJob(BaseModel):
    """One job as the head knows it; drivers that nobody submitted have no submission id."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    submission_id: str | None = None
    status: JobStatus
    message: str | None = None
    error_type: str | None = None
    driver_exit_code: int | None = None
    metadata: Mapping[str, str] | None = Field(None)


class Submission(NamedTuple):
    """What is to run on the head."""

    submission_id: str
    entrypoint: str
    """A shell command."""
    metadata: Mapping[str, str]


_JOBS = TypeAdapter(list[RayJob])


class RayJobClient:
    """One head's job API. A context; closing it leaves jobs as they are."""

    def __init__(self, address: str, token: str | None) -> None:
        """
        Args:
            address: of the dashboard, such as `http://10.0.0.7:8265`.
            token: of the run's head; `None` for a head without authentication.
        """
        self._address = address.rstrip("/")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=CALL_SECONDS))

    async def __aenter__(self) -> "RayJobClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def version(self) -> str:
        """Of Ray; raises HeadUnreachableError until the head serves."""
        _, text = await self._ask("GET", "/api/version")
        return str(self._json(text)["ray_version"])

    async def find(self, submission_id: str) -> RayJob | None:
        """The job, if this head knows it: a head that was restarted knows none of before."""
        status, text = await self._ask("GET", f"/api/jobs/{submission_id}")
        return None if status == 404 else self._job(text)

    async def jobs(self) -> list[RayJob]:
        """Everything that runs or ran on this head."""
        _, text = await self._ask("GET", "/api/jobs/")
        try:
            return _JOBS.validate_json(text)
        except ValidationError as error:
            raise HeadUnreachableError(f"{self._address} lists its jobs in an unknown form: {_short(text)}") from error

    async def submit(self, job: Submission) -> None:
        """Start it, unless the head has one of that id.

        Raises:
            HeadUnreachableError: nobody knows whether it arrived; repeat.
            HeadRefusedError: Ray takes no such job.
        """
        body = {
            "entrypoint": job.entrypoint,
            "submission_id": job.submission_id,
            "metadata": dict(job.metadata),
        }
        try:
            await self._ask("POST", "/api/jobs/", body)
        except (HeadRefusedError, HeadUnreachableError):
            # Ray answers 400 or 500, by its release, to an id that is taken; an answer may also be lost.
            if await self.find(job.submission_id) is None:
                raise

    async def stop(self, submission_id: str) -> bool:
        """Ask a job to end; whether it was running. It ends a moment later."""
        status, text = await self._ask("POST", f"/api/jobs/{submission_id}/stop")
        return status != 404 and bool(self._json(text).get("stopped"))

    async def log(self, submission_id: str) -> AsyncIterator[str]:
        """What a job prints, from its beginning on, until it has ended or the connection does.

        Raises:
            HeadUnreachableError: there is no connection, or it broke.
        """
        path = f"{self._address}/api/jobs/{submission_id}/logs/tail"
        try:
            async with self._session.ws_connect(
                path, heartbeat=PING_SECONDS, max_msg_size=LOG_CHUNK_BYTES, timeout=aiohttp.ClientWSTimeout(ws_close=5)
            ) as socket:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        yield message.data
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HeadUnreachableError(f"the log of {submission_id} cannot be read from {path}: {error!r}") from error

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Status and text; 404 is an answer only where it is about a job."""
        what = f"{method} {self._address}{path}"
        try:
            async with self._session.request(method, self._address + path, json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HeadUnreachableError(f"Ray's head does not answer ({what}): {error!r}") from error
        if answer.status in (401, 403):
            raise HeadRefusedError(
                f"Ray's head refuses the run's token ({what}: {answer.status}): run cleanup, then launch-cluster again"
            )
        is_unknown_job = answer.status == 404 and "does not exist" in text
        if (answer.status == 404 and not is_unknown_job) or answer.status >= 500:
            raise HeadUnreachableError(f"Ray's head cannot serve ({what}: {answer.status}): {_short(text)}")
        if answer.status >= 400 and not is_unknown_job:
            raise HeadRefusedError(f"Ray's head refuses ({what}: {answer.status}): {_short(text)}")
        return answer.status, text

    def _job(self, text: str) -> RayJob:
        try:
            return RayJob.model_validate_json(text)
        except ValidationError as error:
            raise HeadUnreachableError(f"{self._address} describes a job in an unknown form: {_short(text)}") from error

    def _json(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise HeadUnreachableError(f"{self._address} answers no JSON: {_short(text)}") from error
        if not isinstance(found, dict):
            raise HeadUnreachableError(f"{self._address} answers no object: {_short(text)}")
        return found


def _short(text: str) -> str:
    """The end of an answer, where a traceback says what it is about."""
    words = " ".join(text.split())
    return words if len(words) <= _SHOWN else f"...{words[-_SHOWN:]}"
