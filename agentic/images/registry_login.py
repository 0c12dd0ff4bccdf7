"""Showing a registry who we are: its challenge, the credentials of `docker login`, and what to send. Pure but for
reading the configuration."""

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentic.images.errors import RegistryRefusedError
from agentic.images.reference import HUB

CONFIG_VARIABLE = "DOCKER_CONFIG"
"""Folder of the configuration, as docker and buildctl look for it."""

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io", HUB)
_PIECE = re.compile(
    r"""[\s,]*([\w!#$%&'*+.^`|~-]+)(?:\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s,"=]+)))?([^\s,]*)""", re.ASCII
)
"""Of a WWW-Authenticate: a parameter with its value, or a scheme; the last group makes it neither (`YII==`)."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a 401 asks for."""

    scheme: str
    """`bearer`, `basic`, or empty when nothing that we know is asked for."""
    realm: str = ""
    service: str = ""
    scope: str = ""

    @classmethod
    def choose(cls, headers: Iterable[str]) -> Self:
        """The one that we can answer best of what the WWW-Authenticate headers ask for: each may hold several."""
        found = [one for header in headers for one in cls._read(header)]
        known = [one for one in found if one.scheme == "bearer" and one.realm]
        known += [one for one in found if one.scheme == "basic"]
        return known[0] if known else cls("")

    @classmethod
    def _read(cls, header: str) -> Iterator[Self]:
        challenges: list[tuple[str, dict[str, str]]] = []
        for piece in _PIECE.finditer(header):
            name, quoted, plain, rest = piece.groups()
            if quoted is None and plain is None:
                challenges += [] if rest else [(name.lower(), {})]
            elif challenges:
                challenges[-1][1][name.lower()] = plain or re.sub(r"\\(.)", r"\1", quoted)
        for scheme, values in challenges:
            yield cls(scheme, *(values.get(name, "") for name in ("realm", "service", "scope")))


@dataclass(frozen=True, slots=True)
class Login:
    """Name and password, or a token that stands for both."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """As an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True)
class Logins:
    """The credentials of one configuration, by host."""

    auths: Mapping[str, Any] = field(default_factory=dict, repr=False)
    helpers: frozenset[str] = frozenset()
    """Hosts whose credentials a program outside keeps, which is not asked; `*` is every host."""
    source: str = ""

    @classmethod
    def read(cls, folder: Path | None = None) -> Self:
        """Of `docker login`; nothing when there is none. Raises RegistryRefusedError when it cannot be read."""
        named = os.environ.get(CONFIG_VARIABLE)
        path = (folder or (Path(named) if named else Path.home() / ".docker")) / "config.json"
        try:
            content = json.loads(path.read_text("utf-8"))
            helpers = frozenset(content.get("credHelpers") or {}) | ({"*"} if content.get("credsStore") else set())
            return cls(dict(content.get("auths") or {}), helpers, str(path))
        except FileNotFoundError:
            return cls(source=str(path))
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise RegistryRefusedError(f"{path} is no configuration of docker login: {error}") from None

    def find(self, host: str) -> Login | None:
        """For one registry. Raises RegistryRefusedError for an entry that makes no sense."""
        for key in _HUB_KEYS if host == HUB else (host, f"https://{host}", f"http://{host}"):
            entry = self.auths.get(key) or self.auths.get(f"{key}/v1/") or self.auths.get(f"{key}/v2/")
            if entry:
                return self._login(host, entry)
        return None

    def _login(self, host: str, entry: Any) -> Login:
        try:
            if token := entry.get("identitytoken"):
                return Login(identity_token=token)
            if entry.get("auth"):
                user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
                return Login(user, password.strip("\0"))
            return Login(entry["username"], entry["password"])
        except (binascii.Error, ValueError, KeyError, AttributeError, TypeError) as error:
            raise RegistryRefusedError(f"{self.source}: the entry of {host} cannot be read: {error!r}") from None

    def missing(self, host: str) -> str:
        """What to do about a host that does not let us in."""
        if self.helpers & {host, "*"}:
            return f"its credentials are kept by a helper program, which is not asked: put them into {self.source}"
        if self.find(host) is None:
            return f"there are no credentials for it in {self.source}: set images.registry.secret, or docker login"
        return f"the credentials in {self.source} are not enough, or there is no such repository"
