"""Workflows through an Argo server, by its REST API: for people who have a login at Argo and none at the cluster.

Address, token and TLS are found as the argo command finds them; see `ServerAddress`. The server keeps nodes that went
into a database, and retries by itself.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentic.cluster.client import CREATED_BY
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import (
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    NotFoundError,
    one_line,
)
from agentic.cluster.resources import JsonObject, name_of, version_of
from agentic.cluster.settings import ClusterSettings, KubeClientSettings
from agentic.cluster.tls import make_tls
from agentic.cluster.transport import Call, Transport
from agentic.errors import TransientError
from workflows.argo.api import ENDED, GoneError
from workflows.argo.nodes import is_over, phase_of
from workflows.errors import CommandError

EVENTS = "text/event-stream"
PAUSE_SECONDS = 1.0
"""Before a stream that ended is opened again."""


@dataclass(frozen=True)
class ServerAddress:
    """Where an Argo server is, and how it is spoken to.

    `cluster.argo_server` or ARGO_SERVER name it; HTTPS unless the address says otherwise or ARGO_SECURE is `false`.
    ARGO_TOKEN is the whole Authorization header, as `argo auth token` prints it; without it, the kubeconfig's own.
    """

    base: str
    authorization: str | None
    authority: str | None
    is_verified: bool

    @classmethod
    def find(cls, settings: ClusterSettings, environment: Mapping[str, str]) -> "ServerAddress | None":
        """The one that settings or the environment name, if any."""
        named = settings.argo_server or environment.get("ARGO_SERVER")
        if not named:
            return None
        if "://" not in named:
            scheme = "http" if environment.get("ARGO_SECURE") == "false" else "https"
            named = f"{scheme}://{named}"
        base = named.rstrip("/") + environment.get("ARGO_BASE_HREF", "").rstrip("/")
        verified = environment.get("ARGO_INSECURE_SKIP_VERIFY") != "true"
        return cls(base, environment.get("ARGO_TOKEN") or None, settings.argo_server_ca, verified)

    def transport(self, authorization: str | None, settings: KubeClientSettings) -> Transport:
        """The way there; `authorization` counts where ARGO_TOKEN is not set.

        Raises:
            CommandError: the authority's file is none.
        """
        try:
            tls = make_tls(self.authority, None, None, is_verified=self.is_verified) if self._is_https else True
        except OSError as error:
            reason = error.strerror or str(error)
            raise CommandError(
                f"cluster.argo_server_ca is {self.authority}, which holds no certificates ({one_line(reason)}): name a "
                "PEM file, or leave it out"
            ) from error
        return Transport(FixedCredentials(Access(self.base, self.authorization or authorization, tls)), settings)

    @property
    def _is_https(self) -> bool:
        return self.base.startswith("https:")


class ServerWorkflows:
    """An Argo server's view of one namespace."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace

    async def check(self) -> None:
        """One look, to know that the server answers and lets us in."""
        call = Call("ask the Argo server", "GET", self._path(), (("listOptions.limit", "1"),))
        await self._transport.json(call)

    async def create(self, document: JsonObject) -> JsonObject:
        # As `KubeClient.create`: our own, repeated after a lost answer, is told from somebody else's.
        name, mark = name_of(document), uuid.uuid4().hex
        annotations = {**(document["metadata"].get("annotations") or {}), CREATED_BY: mark}
        marked = {**document, "metadata": {**document["metadata"], "annotations": annotations}}
        body = {"namespace": self._namespace, "workflow": marked}
        try:
            return await self._ask("create", "POST", name, self._path(), body)
        except ConflictError as error:  # the server does not say why; a new object conflicts with its name only
            found = await self._find(name)
            if found is not None and (found["metadata"].get("annotations") or {}).get(CREATED_BY) == mark:
                return found
            raise AlreadyExistsError(str(error)) from error

    async def _find(self, name: str) -> JsonObject | None:
        with contextlib.suppress(NotFoundError):
            return await self.get(name)
        return None

    async def get(self, name: str) -> JsonObject:
        return await self._ask("get", "GET", name, self._path(name))

    async def list(self, labels: str) -> list[JsonObject]:
        params = (("listOptions.labelSelector", labels),)
        found = await self._ask("list", "GET", "", self._path(), params=params)
        items: list[JsonObject] = found.get("items") or []
        return sorted(items, key=lambda workflow: str(workflow["metadata"].get("creationTimestamp", "")))

    async def follow(self, name: str) -> AsyncIterator[JsonObject]:
        seen = await self.get(name)
        yield seen
        while not is_over(seen):
            with contextlib.suppress(TransientError):
                async for found in self._events(name):
                    if version_of(found) != version_of(seen):
                        seen = found
                        yield seen
                    if is_over(seen):
                        return
            await asyncio.sleep(PAUSE_SECONDS)
            seen = await self._again(name, seen)
            yield seen

    async def _again(self, name: str, seen: JsonObject) -> JsonObject:
        """What a broken stream may have missed."""
        try:
            return await self.get(name)
        except NotFoundError as error:
            raise GoneError(f"workflow {name} was deleted") from error
        except ApiUnavailableError:
            return seen

    async def _events(self, name: str) -> AsyncIterator[JsonObject]:
        path = f"/api/v1/workflow-events/{self._namespace}"
        call = Call(f"watch workflow {name}", "GET", path, (("listOptions.fieldSelector", f"metadata.name={name}"),))
        async for event in self._stream(call, self._transport.settings.watch_idle_seconds):
            if event.get("type") == "DELETED":
                raise GoneError(f"workflow {name} was deleted")
            if event.get("object"):
                yield event["object"]

    async def retry(self, name: str) -> None:
        await self._ask("retry", "PUT", name, self._path(name, "retry"), self._named(name))

    async def stop(self, name: str) -> None:
        if phase_of(await self.get(name)) not in ENDED:
            await self._ask("stop", "PUT", name, self._path(name, "stop"), self._named(name))

    async def delete(self, name: str) -> bool:
        try:
            await self._ask("delete", "DELETE", name, self._path(name))
        except NotFoundError:
            return False
        return True

    async def log(self, name: str, pod: str, *, follow: bool) -> AsyncIterator[bytes]:
        params = [("logOptions.container", "main"), ("podName", pod)]
        params += [("logOptions.follow", "true")] if follow else []
        call = Call(f"read the log of {pod}", "GET", self._path(name, "log"), tuple(params))
        is_empty = True
        async for entry in self._stream(call, None):
            is_empty = False
            yield (entry.get("content", "") + "\n").encode()
        if is_empty:  # the server answers so for a pod that is gone
            raise NotFoundError(f"{call.what}: there is no such pod, or it printed nothing")

    async def _stream(self, call: Call, idle_seconds: float | None) -> AsyncIterator[Any]:
        async with self._transport.stream(call, idle_seconds, EVENTS) as content:
            async for line in content:
                text = line.removeprefix(b"data: ").strip()
                if text.startswith(b"{"):
                    yield read_message(text, call.what)

    async def _ask(
        self,
        verb: str,
        method: str,
        name: str,
        path: str,
        body: JsonObject | None = None,
        params: tuple[tuple[str, str], ...] = (),
    ) -> JsonObject:
        what = f"{verb} workflow {name} through the Argo server".replace("  ", " ")
        found: JsonObject = await self._transport.json(Call(what, method, path, params, body))
        return found

    def _path(self, *parts: str) -> str:
        return "/".join(("/api/v1/workflows", self._namespace, *parts))

    def _named(self, name: str) -> JsonObject:
        return {"namespace": self._namespace, "name": name}


def read_message(text: bytes, what: str) -> Any:
    """What one line of a stream brings.

    Raises:
        ApiUnavailableError: it was cut, or the server says that the stream broke.
    """
    try:
        message = json.loads(text)
    except ValueError as error:
        raise ApiUnavailableError(f"{what}: the stream broke within a line") from error
    if "error" in message:
        problem = message["error"]
        said = problem.get("message") if isinstance(problem, dict) else problem
        raise ApiUnavailableError(f"{what}: the stream broke: {one_line(str(said or 'no reason given'))}")
    return message.get("result") or {}
