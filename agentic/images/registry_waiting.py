"""Waiting for registries: which server is left alone until when, and which answer is worth waiting for another.

`Waiting.ask` sends a request until its answer is one that time would not change. What a server asked for (429 or 5xx
with Retry-After), and that it does not answer at all, holds for every request to it: while it is left alone nobody
asks it, and whoever would have to wait longer than he is willing to is told at once, without asking.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
from multidict import CIMultiDictProxy

from agentic.images.errors import RateLimitedError, RegistryTlsError, RegistryUnavailableError
from agentic.images.registry_words import said

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
SILENT_SECONDS = 120.0
"""How long a registry is asked again that does not answer, or with 5xx, and names no time."""

Wait = Callable[[str], None]
"""Told in a line that a registry is waited for, and why."""

type Trouble = RateLimitedError | RegistryUnavailableError


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    elsewhere: str = ""
    """The host that a redirect led to, where it is another one than was asked."""


@dataclass(frozen=True, slots=True)
class _Closed:
    """A server that is left alone."""

    until: float
    trouble: Trouble


class Waiting:
    """What is known of servers that want to be left alone."""

    def __init__(self, patience_seconds: float, on_wait: Wait) -> None:
        self._patience_seconds = patience_seconds
        self._on_wait = on_wait
        self._closed: dict[str, _Closed] = {}

    async def ask(self, server: str, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Raises what is in the way when it outlasts our patience, or is none of time."""
        started, pause = time.monotonic(), FIRST_PAUSE_SECONDS
        while True:
            await self._wait_until_open(server, started + self._patience_seconds)
            answer = await _try(server, send)
            if isinstance(answer, Answer):
                return answer
            trouble, wanted = answer
            is_silent = wanted is None and isinstance(trouble, RegistryUnavailableError)
            patience = min(self._patience_seconds, SILENT_SECONDS if is_silent else float("inf"))
            wait = wanted if wanted is not None else pause * random.uniform(0.5, 1.0)
            is_over = time.monotonic() + wait > started + patience
            self._leave_alone(server, float("inf") if is_over and is_silent else wait, trouble)
            if is_over:
                raise trouble
            self._on_wait(f"{trouble}; again in {wait:.0f} s")
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _leave_alone(self, server: str, seconds: float, trouble: Trouble) -> None:
        known, until = self._closed.get(server), time.monotonic() + seconds
        if known is None or known.until < until:
            self._closed[server] = _Closed(until, trouble)

    async def _wait_until_open(self, server: str, latest: float) -> None:
        while (closed := self._closed.get(server)) is not None and closed.until > time.monotonic():
            if closed.until > latest:
                raise closed.trouble
            await asyncio.sleep(closed.until - time.monotonic())


async def _try(server: str, send: Callable[[], Awaitable[Answer]]) -> Answer | tuple[Trouble, float | None]:
    """An answer, or what may pass and how long the server wants to be left alone."""
    try:
        answer = await send()
    except aiohttp.ClientConnectorCertificateError as error:
        reason = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        raise RegistryTlsError(
            f"{server}: its certificate is not trusted ({reason}): put its authority into images.registry.ca_file"
        ) from error
    except aiohttp.ClientConnectorSSLError as error:
        if isinstance(error.os_error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return RegistryUnavailableError(f"{server} does not answer (it cut the connection: {error})"), None
        raise RegistryTlsError(
            f"{server} speaks no TLS that we understand: if it is to be spoken to in the clear, name it in "
            "images.registry.plain_http"
        ) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return RegistryUnavailableError(f"{server} does not answer ({type(error).__name__}: {error})"), None
    wanted = retry_after_seconds(answer.headers.get("Retry-After", ""), answer.headers.get("Date", ""))
    if answer.status == 429:
        return RateLimitedError(f"{server} limits how often it is asked (429{said(answer.body)})"), wanted
    if answer.status >= 500:
        return RegistryUnavailableError(f"{server} answered {answer.status}{said(answer.body)}"), wanted
    return answer


def retry_after_seconds(value: str, date: str = "") -> float | None:
    """From now; None when nothing useful is said. A time is counted from the server's own clock where it tells it."""
    words = value.strip()
    if words.isascii() and words.replace(".", "", 1).isdigit():
        return float(words) or None
    at = _time(words)
    if at is None:
        return None
    seconds = (at - (_time(date) or datetime.now(UTC))).total_seconds()
    return seconds if seconds > 0 else None


def _time(text: str) -> datetime | None:
    """Times of HTTP are of Greenwich, whether they say so or not."""
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
