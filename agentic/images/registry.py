"""`Registry`: asks registries of the distribution API (version 2) which images they have.

    async with Registry(settings, Logins.read()) as registry:
        digest = await registry.digest_of(Reference.parse("registry.example/tasks/one:latest"))

Owned here: requests, tokens, and waiting. Nothing is pulled or pushed: BuildKit does that, and the nodes.

Invariants:
- a missing image is None, and never an error; an error never reads as a missing image;
- manifests are asked for by HEAD, which registries with a limit on pulls do not count;
- 429, 5xx and broken connections are waited out (`registry_waiting`);
- a password is sent to its own host and to the token server that this host itself names, never to where a redirect
  leads, and never in the clear unless the host is one that is spoken to in the clear. It comes from the configuration
  of `docker login` and from nowhere else.
"""

import asyncio
import hashlib
import json
import ssl
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from agentic.images.errors import RegistryAnswerError, RegistryRefusedError, RegistryTlsError
from agentic.images.reference import DIGEST, Reference
from agentic.images.registry_login import Challenge, Login, Logins
from agentic.images.registry_waiting import Answer, Wait, Waiting
from agentic.images.registry_words import said
from agentic.images.settings import RegistrySettings

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
LARGEST_ANSWER_BYTES = 8 * 1024 * 1024
"""Twice what registries take for a manifest."""


class Registry:
    """Any number of registries, with one account at each."""

    def __init__(self, settings: RegistrySettings, logins: Logins, on_wait: Wait = lambda line: None) -> None:
        self._settings = settings
        self._logins = logins
        self._waiting = Waiting(settings.patience_seconds, on_wait)
        self._slots = asyncio.Semaphore(settings.requests_at_once)
        self._authorizations: dict[tuple[str, str], str] = {}
        self._known: set[str] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Registry":
        connector = aiohttp.TCPConnector(ssl=_trust(self._settings.ca_file))
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        # The session's own way to follow the environment (trust_env) would also send what is in ~/.netrc.
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
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
        try:
            if "manifests" in manifest:
                real = [one for one in manifest["manifests"] if one.get("platform", {}).get("os") != "unknown"]
                manifest = await self._manifest(reference.pinned(str(real[0]["digest"])))
            return sum(int(part["size"]) for part in [manifest["config"], *manifest["layers"]])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RegistryAnswerError(f"{reference}: its manifest tells no size: is it an image?") from error

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

        answer = await self._waiting.ask(reference.server, send)
        if answer.status == 401 and answer.elsewhere:
            raise RegistryRefusedError(
                f"{reference}: it sends us on to {answer.elsewhere}, which asks who we are: only the registry is told"
            )
        if answer.status == 401:
            self._authorizations[key] = await self._authorize(reference, answer)
            answer = await self._waiting.ask(reference.server, send)
        if answer.status in (401, 403):
            raise RegistryRefusedError(
                f"{reference}: refused ({answer.status}{said(answer.body)}): {self._logins.missing(reference.host)}"
            )
        if answer.status not in (200, 404):
            raise RegistryAnswerError(f"{reference}: answered {answer.status}{said(answer.body)}")
        return answer

    async def _require_registry(self, reference: Reference) -> None:
        """Any web server answers 404 to a name that it does not know; a registry answers to /v2/."""
        if reference.server in self._known:
            return
        root = self._root(reference.server)
        answer = await self._waiting.ask(reference.server, lambda: self._send("GET", f"{root}/", None))
        if answer.status not in (200, 401, 403):
            raise RegistryAnswerError(f"{reference.server} is no registry: it answers {answer.status} to /v2/")
        self._known.add(reference.server)

    def _root(self, server: str) -> str:
        return f"{'http' if self._is_plain(server) else 'https'}://{server}/v2"

    def _is_plain(self, server: str) -> bool:
        return server in self._settings.plain_http

    async def _authorize(self, reference: Reference, refusal: Answer) -> str:
        """An Authorization header that answers a 401."""
        challenge = Challenge.choose(refusal.headers.getall("WWW-Authenticate", []))
        login = self._logins.find(reference.host)
        if challenge.scheme == "basic" and login is not None and login.user:
            return login.basic
        if challenge.scheme != "bearer":
            raise RegistryRefusedError(f"{reference}: refused (401): {self._logins.missing(reference.host)}")
        if not self._is_safe(challenge.realm, reference):
            raise RegistryAnswerError(
                f"{reference.host} sends us to {challenge.realm!r} for a token, where a password would go in the "
                "clear: images.registry.plain_http has to name both, if that is meant"
            )
        scope = challenge.scope or f"repository:{reference.repository}:pull"
        answer = await self._waiting.ask(
            urlsplit(challenge.realm).netloc, lambda: self._send_for_token(challenge, scope, login)
        )
        if answer.status != 200:
            raise RegistryRefusedError(
                f"{reference}: no token ({answer.status}{said(answer.body)}): {self._logins.missing(reference.host)}"
            )
        document = _document(reference, answer)
        token = document.get("token") or document.get("access_token")
        if not token:
            raise RegistryAnswerError(f"{challenge.realm} answered without a token")
        return f"Bearer {token}"

    def _is_safe(self, realm: str, reference: Reference) -> bool:
        """Whether a password may go there."""
        where = urlsplit(realm)
        if where.scheme != "http" or not self._is_plain(reference.server):
            return where.scheme == "https"
        return self._is_plain(where.netloc) or where.hostname == urlsplit(f"//{reference.server}").hostname

    async def _send_for_token(self, challenge: Challenge, scope: str, login: Login | None) -> Answer:
        asked = {"service": challenge.service, "scope": scope}
        if login is not None and login.identity_token:
            form = asked | {
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": "agentic",
            }
            # A redirect that keeps the method would hand the token to whoever it leads to.
            return await self._send("POST", challenge.realm, None, data=form, allow_redirects=False)
        return await self._send("GET", challenge.realm, login.basic if login else None, params=asked)

    async def _send(self, method: str, url: str, authorization: str | None, **body: Any) -> Answer:
        if self._session is None:
            raise RuntimeError("a Registry is used within its async with")
        headers = {"Accept": ", ".join(MANIFESTS)} if "/manifests/" in url else {}
        headers |= {"Authorization": authorization} if authorization else {}
        more = {"headers": headers, "proxy": _proxy(url), **body}
        async with self._slots, self._session.request(method, url, **more) as response:
            hops = [*response.history, response]
            if url.startswith("https:") and any(hop.url.scheme != "https" for hop in hops):
                raise RegistryAnswerError(f"{url}: it sends us on to {response.url}, where anybody could answer")
            content = await response.content.read(LARGEST_ANSWER_BYTES)
            while chunk := await response.content.read(LARGEST_ANSWER_BYTES):
                content += chunk
                if len(content) > LARGEST_ANSWER_BYTES:
                    raise RegistryAnswerError(f"{url}: an answer longer than {LARGEST_ANSWER_BYTES} bytes")
            is_elsewhere = hops[0].url.origin() != response.url.origin()
            return Answer(response.status, response.headers, content, str(response.url.host) if is_elsewhere else "")


def _proxy(url: str) -> str | None:
    """Of the environment (HTTPS_PROXY, NO_PROXY)."""
    where = urlsplit(url)
    return None if proxy_bypass(where.netloc) else getproxies().get(where.scheme)


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
