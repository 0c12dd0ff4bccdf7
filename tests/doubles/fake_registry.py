"""A registry for tests: what is read of the distribution API over real HTTP, with the moods of public ones.

    async with FakeRegistry() as registry:
        digest = registry.push("tasks/one", "latest")
        ... registry.host ...

`login` makes it ask for a token (or for Basic), `faults` for patience. What it fakes: an image is its manifest and has
no layers, whatever is put as one is taken, and tokens are checked by equality.
"""

import base64
import hashlib
import json
import ssl
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

OCI = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Login:
    """Who is let in, and how he has to show it."""

    user: str
    password: str
    scheme: Literal["bearer", "basic"] = "bearer"
    identity_token: str = ""
    lets_anybody_read: bool = False
    """Whether whoever shows nothing gets a token too, as public registries do it."""
    more_challenges: tuple[str, ...] = ()
    """WWW-Authenticate headers before its own."""


@dataclass
class Fault:
    """An answer that the next requests of a kind get instead of the true one."""

    status: int
    times: int = 1
    path: str = "/manifests/"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit."}]}'


@dataclass
class FakeRegistry:
    """One server; an async context."""

    login: Login | None = None
    tls: ssl.SSLContext | None = None
    faults: list[Fault] = field(default_factory=list)
    tells_digests: bool = True
    has_api: bool = True
    realm: str = ""
    """Where it sends clients for a token; empty is itself."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each, in order."""
    shown: list[str] = field(default_factory=list)
    """What each request showed of who it is (Authorization), or what it posted."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Beginning of a path → where whoever asks for it is sent on to (307)."""
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """Token → the scope that it was given for."""
    host: str = ""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeRegistry":
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def push(self, repository: str, tag: str, manifest: dict[str, Any] | None = None) -> str:
        """Put an image there; its digest."""
        body = json.dumps(manifest or {"schemaVersion": 2, "mediaType": OCI, "name": f"{repository}:{tag}"}).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[repository, tag] = self.manifests[repository, digest] = body
        return digest

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        posted = (await request.read()).decode(errors="replace") if request.method == "POST" else ""
        self.shown.append(request.headers.get("Authorization", "") or posted)
        target = next((to for start, to in self.redirects.items() if request.path.startswith(start)), None)
        if target is not None:
            return web.Response(status=307, headers={"Location": f"{target}{request.path}"})
        fault = next((one for one in self.faults if one.times > 0 and one.path in request.path), None)
        if fault is not None:
            fault.times -= 1
            return web.Response(status=fault.status, headers=fault.headers, body=fault.body)
        if request.path == "/token":
            return await self._token(request)
        if not self.has_api:
            return web.Response(status=404)
        refusal = self._refusal(request)
        if refusal is None and request.method == "PUT":
            repository, _, tag = request.path.removeprefix("/v2/").partition("/manifests/")
            self.push(repository, tag, json.loads(await request.read()))
            return web.Response(status=201)
        return refusal or self._answer(request)

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.login is None:
            return None
        given = request.headers.get("Authorization", "")
        repository = request.path.removeprefix("/v2/").partition("/manifests/")[0].partition("/tags/")[0]
        scope = f"repository:{repository}:pull"
        if self.login.scheme == "basic":
            if given == self._basic():
                return None
            return self._challenge('Basic realm="here"')
        if self.tokens.get(given.removeprefix("Bearer ")) == scope:
            return None
        realm = self.realm or f"http{'s' if self.tls else ''}://{self.host}/token"
        return self._challenge(f'Bearer realm="{realm}",service="fake",scope="{scope}"')

    def _challenge(self, own: str) -> web.Response:
        answer = web.Response(status=401)
        for challenge in (*(self.login.more_challenges if self.login else ()), own):
            answer.headers.add("WWW-Authenticate", challenge)
        return answer

    def _basic(self) -> str:
        if self.login is None:
            raise RuntimeError("nobody has to show who he is")
        return "Basic " + base64.b64encode(f"{self.login.user}:{self.login.password}".encode()).decode()

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post() if request.method == "POST" else request.query
        asked = str(form.get("scope"))
        identity = self.login.identity_token if self.login else ""
        is_known = request.headers.get("Authorization") == self._basic()
        if self.login and self.login.lets_anybody_read and "Authorization" not in request.headers:
            is_known = True
        if not is_known and not (identity and form.get("refresh_token") == identity):
            return web.json_response({"details": "incorrect username or password"}, status=401)
        token = f"token-{len(self.tokens)}"
        self.tokens[token] = asked
        return web.json_response({"token": token})

    def _answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/v2/")
        if not path:
            return web.Response(body=b"{}")
        if path.endswith("/tags/list"):
            repository = path.removesuffix("/tags/list")
            tags = sorted(tag for name, tag in self.manifests if name == repository and ":" not in tag)
            if not tags:
                return web.json_response({"errors": [{"code": "NAME_UNKNOWN"}]}, status=404)
            return web.json_response({"name": repository, "tags": tags})
        repository, _, version = path.partition("/manifests/")
        body = self.manifests.get((repository, version))
        if body is None:
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
        digest = {"Docker-Content-Digest": f"sha256:{hashlib.sha256(body).hexdigest()}"} if self.tells_digests else {}
        return web.Response(body=body, headers={"Content-Type": OCI, **digest})
