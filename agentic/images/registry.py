"""`Registry`: asks registries of the distribution API (version 2) which images they have.

    async with Registry(settings, Logins.read()) as registry:
        digest = await registry.digest_of(Reference.parse("registry.example/tasks/one:latest"))

Owned here: requests, tokens, and waiting. Nothing is pulled or pushed: BuildKit does that, and the nodes.

Invariants:
- a missing image is None, and never an error; an error never reads as a missing image;
- manifests are asked for by HEAD, which registries with a limit on pulls do not count;
- 429, 5xx and broken connections are waited out, as long as the registry says where it does, and a host that asked for
  a pause is left alone by everybody meanwhile;
- a password is sent to its own host and to the token server that this host names, never in the clear unless the host
  is one that is spoken to in the clear.
"""

import asyncio
import hashlib
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from agentic.images.errors import (
    RateLimitedError,
    RegistryAnswerError,
    RegistryRefusedError,
    RegistryTlsError,
    RegistryUnavailableError,
)
from agentic.images.reference import DIGEST, Reference
from agentic.images.registry_login import Challenge, Login, Logins
from agentic.images.settings import RegistrySettings

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
SILENT_SECONDS = 120.0
"""How long a registry is asked again that does not answer, or with 5xx, and names no time."""
LARGEST_ANSWER_BYTES = 8 * 1024 * 1024
"""Twice what registries take for a manifest."""
SAID_CHARACTERS = 200

Wait = Callable[[str], None]
"""Told in a line that a registry is waited for, and why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Registry:
    """Any number of registries, with one account at each."""

    def __init__(self, settings: RegistrySettings, logins: Logins, on_wait: Wait = lambda line: None) -> None:
        self._settings = settings
        self._logins = logins
        self._on_wait = on_wait
        self._slots = asyncio.Semaphore(settings.requests_at_once)
        self._open_at: dict[str, float] = {}
        self._authorizations: dict[tuple[str, str], str] = {}
        self._known: set[str] = set()
        self._lost: dict[str, RegistryUnavailableError] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Registry":
        connector = aiohttp.TCPConnector(ssl=_trust(self._settings.ca_file))
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def digest_of(self, reference: Reference) -> str | None:
        """Of the image that the name stands for now; None when there is none."""
        answer = await self._ask("HEAD", reference, f"manifests/{reference.version}")
        if answer.status == 404:
            return None
        digest = answer.headers.get("Docker-Content-Digest", "")
        if not digest:
            answer = await self._ask("GET", reference, f"manifests/{reference.version}")
            digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        if answer.status != 200 or not DIGEST.fullmatch(digest):
            raise RegistryAnswerError(f"{reference}: answered {answer.status} with the digest {digest!r}")
        return digest

    async def tags_of(self, reference: Reference) -> list[str]:
        """Of its repository, the first page; empty when there is no such repository."""
        answer = await self._ask("GET", reference, "tags/list?n=1000")
        if answer.status == 404:
            return []
        return [str(tag) for tag in _document(reference, answer).get("tags") or []]

    async def bytes_of(self, reference: Reference) -> int:
        """Compressed size of an image's layers and configuration, as a node downloads them."""
        manifest = await self._manifest(reference)
        if "manifests" in manifest:
            real = [one for one in manifest["manifests"] if one.get("platform", {}).get("os") != "unknown"]
            manifest = await self._manifest(reference.pinned(str(real[0]["digest"])))
        return sum(int(part["size"]) for part in [manifest["config"], *manifest["layers"]])

    async def _manifest(self, reference: Reference) -> dict[str, Any]:
        answer = await self._ask("GET", reference, f"manifests/{reference.version}")
        if answer.status == 404:
            raise RegistryAnswerError(f"{reference}: there is no such image")
        return _document(reference, answer)

    async def _ask(self, method: str, reference: Reference, path: str) -> Answer:
        """Answers of 200 and 404 only."""
        await self._require_registry(reference)
        url = f"{self._root(reference.server)}/{reference.repository}/{path}"
        key = (reference.host, reference.repository)

        async def send() -> Answer:
            return await self._send(method, url, self._authorizations.get(key))

        answer = await self._patiently(reference.server, send)
        if answer.status == 401:
            self._authorizations[key] = await self._authorize(reference, answer)
            answer = await self._patiently(reference.server, send)
        if answer.status in (401, 403):
            raise RegistryRefusedError(
                f"{reference}: refused ({answer.status}{_said(answer)}): {self._logins.missing(reference.host)}"
            )
        if answer.status not in (200, 404):
            raise RegistryAnswerError(f"{reference}: answered {answer.status}{_said(answer)}")
        return answer

    async def _require_registry(self, reference: Reference) -> None:
        """Any web server answers 404 to a name that it does not know; a registry answers to /v2/."""
        if reference.server in self._known:
            return
        root = self._root(reference.server)
        answer = await self._patiently(reference.server, lambda: self._send("GET", f"{root}/", None))
        if answer.status not in (200, 401):
            raise RegistryAnswerError(f"{reference.server} is no registry: it answers {answer.status} to /v2/")
        self._known.add(reference.server)

    def _root(self, server: str) -> str:
        return f"{'http' if self._is_plain(server) else 'https'}://{server}/v2"

    def _is_plain(self, server: str) -> bool:
        return server in self._settings.plain_http

    async def _authorize(self, reference: Reference, refusal: Answer) -> str:
        """An Authorization header that answers a 401."""
        challenge = Challenge.parse(refusal.headers.get("WWW-Authenticate", ""))
        login = self._logins.find(reference.host)
        if challenge.scheme == "basic" and login is not None and login.user:
            return login.basic
        if challenge.scheme != "bearer":
            raise RegistryRefusedError(f"{reference}: refused (401): {self._logins.missing(reference.host)}")
        if urlsplit(challenge.realm).scheme != "https" and not self._is_plain(reference.server):
            raise RegistryAnswerError(
                f"{reference.host} sends us to {challenge.realm!r} for a token, where a password would go in the clear"
            )
        scope = challenge.scope or f"repository:{reference.repository}:pull"
        answer = await self._patiently(
            urlsplit(challenge.realm).netloc, lambda: self._send_for_token(challenge, scope, login)
        )
        if answer.status != 200:
            raise RegistryRefusedError(
                f"{reference}: no token ({answer.status}{_said(answer)}): {self._logins.missing(reference.host)}"
            )
        document = _document(reference, answer)
        token = document.get("token") or document.get("access_token")
        if not token:
            raise RegistryAnswerError(f"{challenge.realm} answered without a token")
        return f"Bearer {token}"

    async def _send_for_token(self, challenge: Challenge, scope: str, login: Login | None) -> Answer:
        asked = {"service": challenge.service, "scope": scope}
        if login is not None and login.identity_token:
            form = asked | {
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": "agentic",
            }
            return await self._send("POST", challenge.realm, None, data=form)
        return await self._send("GET", challenge.realm, login.basic if login else None, params=asked)

    async def _send(self, method: str, url: str, authorization: str | None, **body: Any) -> Answer:
        if self._session is None:
            raise RuntimeError("a Registry is used within its async with")
        headers = {"Accept": ", ".join(MANIFESTS)} if "/manifests/" in url else {}
        headers |= {"Authorization": authorization} if authorization else {}
        async with self._slots, self._session.request(method, url, headers=headers, **body) as response:
            content = await response.content.read(LARGEST_ANSWER_BYTES)
            while chunk := await response.content.read(LARGEST_ANSWER_BYTES):
                content += chunk
                if len(content) > LARGEST_ANSWER_BYTES:
                    raise RegistryAnswerError(f"{url}: an answer longer than {LARGEST_ANSWER_BYTES} bytes")
            return Answer(response.status, response.headers, content)

    async def _patiently(self, server: str, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Until there is an answer that waiting would not change. Nobody is waited for in vain twice."""
        started, pause = time.monotonic(), FIRST_PAUSE_SECONDS
        while True:
            await self._wait_until_open(server)
            if server in self._lost:
                raise self._lost[server]
            trouble, wanted = await self._try(server, send)
            if isinstance(trouble, Answer):
                return trouble
            is_silent = wanted is None and isinstance(trouble, RegistryUnavailableError)
            patience = min(self._settings.patience_seconds, SILENT_SECONDS if is_silent else float("inf"))
            wait = wanted if wanted is not None else pause * random.uniform(0.5, 1.0)
            if time.monotonic() + wait > started + patience:
                if isinstance(trouble, RegistryUnavailableError):
                    self._lost[server] = trouble
                raise trouble
            self._on_wait(f"{trouble}; again in {wait:.0f} s")
            self._open_at[server] = max(self._open_at.get(server, 0.0), time.monotonic() + wait)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _wait_until_open(self, server: str) -> None:
        while (left := self._open_at.get(server, 0.0) - time.monotonic()) > 0:
            await asyncio.sleep(left)

    async def _try(
        self, server: str, send: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, None] | tuple[RateLimitedError | RegistryUnavailableError, float | None]:
        """An answer, or what may pass and how long the server wants to be left alone."""
        try:
            answer = await send()
        except aiohttp.ClientConnectorCertificateError as error:
            reason = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
            raise RegistryTlsError(
                f"{server}: its certificate is not trusted ({reason}): put its authority into images.registry.ca_file"
            ) from error
        except aiohttp.ClientSSLError as error:
            raise RegistryTlsError(
                f"{server} speaks no TLS that we understand: if it is to be spoken to in the clear, name it in "
                "images.registry.plain_http"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return RegistryUnavailableError(f"{server} does not answer ({type(error).__name__}: {error})"), None
        wanted = _retry_after(answer.headers.get("Retry-After", ""))
        if answer.status == 429:
            return RateLimitedError(f"{server} limits how often it is asked (429{_said(answer)})"), wanted
        if answer.status >= 500:
            return RegistryUnavailableError(f"{server} answered {answer.status}{_said(answer)}"), wanted
        return answer, None


def _trust(ca_file: str | None) -> ssl.SSLContext:
    """The system's authorities, and those of a file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise RegistryTlsError(f"images.registry.ca_file: {ca_file} cannot be read ({error})") from error
    # Registries that sign for themselves seldom have the extensions that newer versions of Python insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _document(reference: Reference, answer: Answer) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RegistryAnswerError(f"{reference}: answered {answer.status} without JSON")
    return document


def _said(answer: Answer) -> str:
    """The registry's own words, for the middle of a message."""
    try:
        document = json.loads(answer.body)
        errors = document.get("errors") or [document]
        words = " ".join(str(errors[0].get(key) or "") for key in ("code", "message", "details"))
    except (ValueError, AttributeError, IndexError, KeyError, TypeError):
        return ""
    words = " ".join(words.split())[:SAID_CHARACTERS]
    return f", {words}" if words else ""


def _retry_after(value: str) -> float | None:
    """In seconds, from now; None when nothing useful is said."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
