"""`KubeClient`: the project's one way to a Kubernetes API server, asynchronous, on one event loop without threads.

    client = KubeClient(LoadedCredentials(), namespace="rl")
    pod = await client.create(PODS, body)

Objects are plain JSON. What may pass is retried in `transport`; refusals come as `agentic.cluster.errors`. A create
that was accepted although its answer got lost is recognised by a mark of its own and not reported as a name taken.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

import aiohttp
from yarl import URL

from agentic.cluster.api import ObjectList, PatchKind, Propagation, WatchEvent
from agentic.cluster.channels import PLAIN_PROTOCOLS, PROTOCOLS, ExecChannels
from agentic.cluster.credentials import Credentials
from agentic.cluster.errors import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    CredentialsError,
    InvalidObjectError,
    NotFoundError,
    WatchExpiredError,
    error_of,
)
from agentic.cluster.resources import PODS, JsonObject, Resource, name_of
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.transport import BROKEN, LONGEST_LINE_BYTES, Call, Retries, Transport, unreachable

FIELD_MANAGER = "agentic-rl"
CREATED_BY = "agentic-rl/created-by-request"
"""Annotation that tells our own create, repeated after a lost answer, from somebody else's."""

PATCH_TYPES: dict[str, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
APPLY_TYPE = "application/apply-patch+yaml"


class KubeClient:
    """The real KubeApi."""

    def __init__(
        self,
        credentials: Credentials,
        settings: KubeClientSettings | None = None,
        *,
        namespace: str = "default",
    ) -> None:
        self._namespace = namespace
        self._transport = Transport(credentials, settings or KubeClientSettings())

    @property
    def namespace(self) -> str:
        return self._namespace

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    def _what(self, verb: str, resource: Resource, name: str, namespace: str | None) -> str:
        where = f" in {namespace or self._namespace}" if resource.is_namespaced else ""
        return f"{verb} {resource.plural}{f' {name}' if name else ''}{where}"

    def _path(self, resource: Resource, namespace: str | None, name: str = "", subresource: str = "") -> str:
        return resource.path(namespace or self._namespace, name, subresource)

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> JsonObject:
        what = self._what("get", resource, name, namespace)
        return _object(await self._transport.json(Call(what, "GET", self._path(resource, namespace, name))))

    async def list(
        self, resource: Resource, *, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> ObjectList:
        what, path = self._what("list", resource, "", namespace), self._path(resource, namespace)
        items: list[JsonObject] = []
        token, chosen = "", selectors(labels, fields)
        while True:
            params = (*chosen, ("limit", str(self._transport.settings.page_size)), *_unless_empty("continue", token))
            try:
                page = _object(await self._transport.json(Call(what, "GET", path, params)))
            except WatchExpiredError:
                if not token:
                    raise
                items, token = [], ""  # the server let go of what the first page was a part of
                continue
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue", "")
            if not token:
                return ObjectList(tuple(items), str(metadata.get("resourceVersion", "")))

    async def read(self, path: str) -> JsonObject:
        """Whatever else lies at a path of the API server, such as `/version` or `/apis/ray.io/v1`. Raises
        NotFoundError."""
        return _object(await self._transport.json(Call(f"get {path}", "GET", path)))

    async def server_seconds(self) -> float:
        """The API server's clock, to the second. Raises ApiUnavailableError when its answer does not say."""
        date = await self._transport.date(Call("get the time", "GET", "/version"))
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError as error:
            raise ApiUnavailableError(f"get the time: the answer has no date but {date!r}") from error

    async def create(
        self, resource: Resource, body: JsonObject, *, namespace: str | None = None, dry_run: bool = False
    ) -> JsonObject:
        name, mark = name_of(body), uuid.uuid4().hex
        metadata = body.get("metadata", {})
        annotations = {**(metadata.get("annotations") or {}), CREATED_BY: mark}
        # What has no name, such as a review, cannot be taken; and a review may have no annotation.
        marked = {**body, "metadata": {**metadata, "annotations": annotations}} if name else body
        call = Call(
            self._what("create", resource, name, namespace),
            "POST",
            self._path(resource, namespace),
            (("fieldManager", FIELD_MANAGER), *_unless_empty("dryRun", "All" if dry_run else "")),
            marked,
            # A quota that many creates change at once answers 409 although nothing of ours conflicts.
            is_retried_on=lambda error: isinstance(error, ConflictError),
        )
        try:
            return _object(await self._transport.json(call))
        except AlreadyExistsError:
            with contextlib.suppress(NotFoundError):
                found = await self.get(resource, name, namespace=namespace)
                if (found["metadata"].get("annotations") or {}).get(CREATED_BY) == mark:
                    return found
            raise

    async def apply(
        self,
        resource: Resource,
        body: JsonObject,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        name = name_of(body)
        call = Call(
            self._what("apply", resource, name, namespace),
            "PATCH",
            self._path(resource, namespace, name),
            (
                *(("fieldManager", FIELD_MANAGER), ("force", "true"), ("fieldValidation", "Strict")),
                *_unless_empty("dryRun", "All" if dry_run else ""),
            ),
            body,
            APPLY_TYPE,
        )
        return _object(await self._transport.json(call))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        kind: PatchKind = "merge",
        subresource: str = "",
    ) -> JsonObject:
        call = Call(
            self._what("patch", resource, "/".join(filter(None, (name, subresource))), namespace),
            "PATCH",
            self._path(resource, namespace, name, subresource),
            (("fieldManager", FIELD_MANAGER),),
            patch,
            PATCH_TYPES[kind],
        )
        return _object(await self._transport.json(call))

    async def patch_scale(
        self, resource: Resource, name: str, replicas: int, *, namespace: str | None = None
    ) -> JsonObject:
        patch = {"spec": {"replicas": replicas}}
        return await self.patch(resource, name, patch, namespace=namespace, subresource="scale")

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_period_seconds: int | None = None,
    ) -> bool:
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value}
        body: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        body |= {"preconditions": preconditions} if preconditions else {}
        body |= {} if grace_period_seconds is None else {"gracePeriodSeconds": grace_period_seconds}
        what = self._what("delete", resource, name, namespace)
        try:
            await self._transport.json(Call(what, "DELETE", self._path(resource, namespace, name), body=body))
        except NotFoundError:
            return False
        except ConflictError:
            if uid is None or await self._is_still(resource, name, namespace, uid):
                raise
            return False
        return True

    async def _is_still(self, resource: Resource, name: str, namespace: str | None, uid: str) -> bool:
        try:
            found = await self.get(resource, name, namespace=namespace)
        except NotFoundError:
            return False
        return bool(found["metadata"]["uid"] == uid)

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        what, idle = self._what("watch", resource, "", namespace), self._transport.settings.watch_idle_seconds
        asked = (("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", resource_version))
        call = Call(what, "GET", self._path(resource, namespace), asked + selectors(labels, fields))
        async with self._transport.stream(call, idle) as content:
            try:
                async for line in content:
                    yield read_event(line, what)
            except ValueError as problem:
                raise ApiUnavailableError(f"{what}: an event longer than {LONGEST_LINE_BYTES} bytes") from problem

    async def log(
        self,
        pod: str,
        *,
        namespace: str | None = None,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
    ) -> AsyncIterator[bytes]:
        """What a container printed, piece by piece; with `follow` until it ends. Raises NotFoundError without the pod,
        InvalidObjectError before the container has started, ApiUnavailableError when the stream breaks."""
        chosen = {"container": container, "tailLines": "" if tail_lines is None else str(tail_lines)}
        chosen |= {"follow": "true" if follow else "", "previous": "true" if previous else ""}
        params = tuple(pair for name, value in chosen.items() for pair in _unless_empty(name, value))
        call = Call(
            self._what("read the log of", PODS, pod, namespace), "GET", self._path(PODS, namespace, pod, "log"), params
        )
        # A followed container may be silent for hours; the socket's keep-alive notices an end that has vanished.
        idle = None if follow else self._transport.settings.request_timeout_seconds
        async with self._transport.stream(call, idle) as content:
            async for piece in content.iter_any():
                yield piece

    @asynccontextmanager
    async def exec(
        self,
        pod: str,
        command: Sequence[str],
        *,
        namespace: str | None = None,
        container: str = "",
        has_stdin: bool = False,
        closes_stdin: bool = False,
    ) -> AsyncIterator[ExecChannels]:
        params = [("stdout", "true"), ("stderr", "true"), *_unless_empty("container", container)]
        params += [("stdin", "true")] if has_stdin else []
        params += [("command", word) for word in command]
        call = Call(
            self._what("exec in", PODS, pod, namespace),
            "GET",
            self._path(PODS, namespace, pod, "exec"),
            tuple(params),
        )
        channels = await self._open(call, PROTOCOLS if closes_stdin else PLAIN_PROTOCOLS)
        try:
            yield channels
        finally:
            await channels.close()

    async def _open(self, call: Call, protocols: tuple[str, ...]) -> ExecChannels:
        """Retried while the handshake fails; when only its answer was lost, a program has been started by then."""
        retries, is_refused = Retries(self._transport.settings.retry_seconds), False
        while True:
            try:
                async with self._transport.turn():
                    return await self._handshake(call, protocols, is_refused)
            except aiohttp.WSServerHandshakeError as problem:
                error = await self._refusal(call, problem)
                if isinstance(error, CredentialsError) and not is_refused:
                    is_refused = True
                    continue
                if not isinstance(error, ApiUnavailableError):
                    raise error from problem
            except BROKEN as problem:
                error = unreachable(call.what, problem)
            await retries.pause(error)

    async def _handshake(self, call: Call, protocols: tuple[str, ...], is_refused: bool) -> ExecChannels:
        access = await self._transport.access(is_refused=is_refused)
        settings = self._transport.settings
        async with asyncio.timeout(settings.request_timeout_seconds):
            socket = await self._transport.session.ws_connect(
                URL(f"{access.server}{call.path}?{query(call.params)}", encoded=True),
                protocols=protocols,
                autoping=False,
                max_msg_size=0,
                headers=access.headers,
                ssl=access.tls,
                proxy=access.proxy,
                server_hostname=access.server_name,
            )
        self._transport.open_spare()
        if socket.protocol not in protocols:
            await socket.close()
            raise InvalidObjectError(f"{call.what}: the server speaks none of {', '.join(protocols)}")
        return ExecChannels(socket, call.what, settings.ping_seconds)

    async def _refusal(self, call: Call, problem: aiohttp.WSServerHandshakeError) -> ApiError:
        """A failed handshake hides the server's words; the same request without an upgrade, which can start nothing,
        is refused for the same reason in plain."""
        if problem.status < 400 or problem.status == 429 or problem.status >= 500:
            return ApiUnavailableError(f"{call.what}: the API server answered {problem.status} to the upgrade")
        if problem.status in (401, 403, 404):
            with contextlib.suppress(ApiUnavailableError, InvalidObjectError):
                await self._transport.text(call)
        return error_of(problem.status, {"message": problem.message}, call.what)


def selectors(labels: str, fields: str) -> tuple[tuple[str, str], ...]:
    return _unless_empty("labelSelector", labels) + _unless_empty("fieldSelector", fields)


quoted = lru_cache(maxsize=128)(quote_plus)
"""Commands share most of their words, and the longest."""


def query(params: Sequence[tuple[str, str]]) -> str:
    """As an address has it. aiohttp's own way takes a tenth of a short command's CPU."""
    return "&".join(f"{name}={quoted(value)}" for name, value in params)


def _unless_empty(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return ((name, value),) if value else ()


def _object(body: Any) -> JsonObject:
    if not isinstance(body, dict):
        raise ApiUnavailableError(f"the API server answered with no object but {type(body).__name__}")
    return body


def read_event(line: bytes, what: str) -> WatchEvent:
    """One line of a watch. Raises the error that an ERROR event carries."""
    try:
        event = json.loads(line)
        kind, body = event["type"], event["object"]
        code = int(body["code"]) if kind == "ERROR" else 0
        if not code and not body["metadata"]["resourceVersion"]:
            raise ValueError("no version")
    except (ValueError, KeyError, TypeError):
        raise ApiUnavailableError(f"{what}: the stream broke within an event, or is none") from None
    if kind == "ERROR":
        raise error_of(code, body, what)
    return WatchEvent(kind, body)
