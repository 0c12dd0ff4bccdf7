"""Names of images as container engines read them: host, repository, tag or digest. Pure."""

import re
from dataclasses import dataclass, replace
from typing import Self

from agentic.images.errors import ImageNameError

HUB = "docker.io"
"""The host of names that have none."""

HUB_SERVER = "registry-1.docker.io"
"""Where that host's registry answers."""

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """One image of one registry."""

    host: str
    repository: str
    tag: str = "latest"
    digest: str = ""
    """Counts, and the tag does not, when it is there."""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Raises ImageNameError."""
        rest, _, digest = name.partition("@")
        head, slash, tail = rest.partition("/")
        is_host = bool(slash) and (head == "localhost" or bool(re.search(r"[.:A-Z]", head)))
        host, path = (head, tail) if is_host else (HUB, rest)
        repository, _, tag = path.partition(":")
        if host == HUB and "/" not in repository:
            repository = f"library/{repository}"
        if not HOST.fullmatch(host):
            raise ImageNameError(f"{name!r} is no image name: {host!r} is no host, with or without a port")
        if not REPOSITORY.fullmatch(repository):
            raise ImageNameError(
                f"{name!r} is no image name: its repository may have lower case, digits, '.', '_', '-'"
            )
        if (tag or ":" in path) and not TAG.fullmatch(tag):
            raise ImageNameError(f"{name!r} is no image name: {tag!r} is no tag")
        if (digest or "@" in name) and not DIGEST.fullmatch(digest):
            raise ImageNameError(f"{name!r} is no image name: {digest!r} is no sha256 digest")
        return cls(host, repository, tag or "latest", digest)

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.host}/{self.repository}"

    @property
    def server(self) -> str:
        """Host and port that requests go to."""
        return HUB_SERVER if self.host == HUB else self.host

    @property
    def version(self) -> str:
        """What the registry is asked for."""
        return self.digest or self.tag

    def pinned(self, digest: str) -> "Reference":
        return replace(self, digest=digest)

    def tagged(self, tag: str) -> "Reference":
        return replace(self, tag=tag, digest="")
