"""A Kubernetes API server in memory, for tests: real HTTP and WebSockets over `kube_store` and `kube_pods`.

    async with KubeApiServer() as server:
        client = KubeClient(FixedCredentials(Access(server.address)))

It speaks get, list (pages, selectors), create, replace, the four kinds of patch, scale, status, delete, watch
(bookmarks, 410) and exec (v5 and v4) for any group and kind. `faults` makes it answer 429, 5xx, break connections
or dawdle. What it fakes is said in `kube_store` and `kube_pods`. `python tests/doubles/kube_api.py` serves alone and
prints its address.
"""

import argparse
import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kube_pods import PodRuntime
from kube_store import Change, Key, KubeStore, Object, Refusal, json_patch, matches, merge

PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)


@dataclass
class Fault:
    """Something that goes wrong with the next `times` requests that fit."""

    method: str = ".*"
    path: str = ".*"
    status: int = 0
    """0 breaks the connection."""
    times: int = 1
    message: str = "injected"
    retry_after_seconds: int | None = None
    delay_seconds: float = 0.0
    after: bool = False
    """The request is carried out first; only its answer is lost."""
    seen: int = 0

    def fits(self, request: web.Request) -> bool:
        fits = re.fullmatch(self.method, request.method) and re.search(self.path, request.path_qs)
        return self.times > 0 and fits is not None


@dataclass
class KubeApiServer:
    """One server; an async context."""

    store: KubeStore = field(default_factory=KubeStore)
    pods: PodRuntime = field(default_factory=PodRuntime)
    faults: list[Fault] = field(default_factory=list)
    bookmark_seconds: float = 1.0
    watch_seconds: float = 600.0
    """How long one watch lasts before the server ends it."""
    requests: list[str] = field(default_factory=list)
    logs: dict[str, bytes | Refusal] = field(default_factory=dict)
    """Pod -> what its containers have printed, or why there is nothing of it; other pods are not there."""
    """Method and path of each, in order."""
    tokens: set[str] = field(default_factory=set)
    """Bearer tokens that are let in; empty lets everybody in."""
    port: int = 0
    address: str = ""
    _runner: web.AppRunner | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> "KubeApiServer":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            shutdown_timeout=0.2,
            handler_cancellation=True,
            max_line_size=1 << 20,
            max_field_size=1 << 20,
            access_log=None,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=2048)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.pods.attach(self.store)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        self.pods.kill_all()
        if self._runner is not None:
            await self._runner.cleanup()
        await self.pods.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.tokens and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return answer(Refusal(401, "Unauthorized", "Unauthorized"))
        fault = next((fault for fault in self.faults if fault.fits(request)), None)
        if fault is not None:
            fault.times, fault.seen = fault.times - 1, fault.seen + 1
            await asyncio.sleep(fault.delay_seconds)
            if fault.after:
                await self._serve(request)
            if fault.status or fault.delay_seconds == 0:
                return self._fail(request, fault)
        return await self._serve(request)

    def _fail(self, request: web.Request, fault: Fault) -> web.Response:
        if not fault.status:
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPInternalServerError
        failed = answer(Refusal(fault.status, "Injected", fault.message))
        if fault.retry_after_seconds is not None:
            failed.headers["Retry-After"] = str(fault.retry_after_seconds)
        return failed

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        found = PATH.fullmatch(request.path)
        if request.path == "/version":
            return web.json_response({"gitVersion": "v0.0.0-double"})
        if found is None:
            return answer(Refusal(404, "NotFound", f"the server could not find {request.path}"))
        group, part = found["group"] or "", found["part"] or ""
        plural = f"{found['plural']}.{group}" if group else found["plural"]
        key = (plural, found["namespace"] or "", found["name"] or "")
        try:
            if request.method == "GET":
                return await self._read(request, key, part)
            return await self._write(request, key, part)
        except Refusal as refusal:
            return answer(refusal)

    async def _read(self, request: web.Request, key: Key, part: str) -> web.StreamResponse:
        plural, namespace, name = key
        if part == "exec":
            return await self.pods.exec(request, self.store.find(key))
        if part == "log":
            printed = self.logs.get(name, Refusal(404, "NotFound", f'pods "{name}" not found'))
            return answer(printed) if isinstance(printed, Refusal) else web.Response(body=printed)
        if name:
            return web.json_response(self.store.find(key))
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, plural, namespace)
        items = self.store.select(plural, namespace, labels, fields)
        limit, start = int(request.query.get("limit") or len(items) or 1), int(request.query.get("continue") or 0)
        metadata: Object = {"resourceVersion": str(self.store.version)}
        metadata |= {"continue": str(start + limit)} if start + limit < len(items) else {}
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        place = int(request.query.get("resourceVersion") or self.store.version)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        ends_at = asyncio.get_running_loop().time() + self.watch_seconds
        shown: set[str] = set()
        for body in self.store.select(plural, namespace, labels, fields):
            shown.add(body["metadata"]["uid"])
        while asyncio.get_running_loop().time() < ends_at and not self._stopping.is_set():
            try:
                changes = self.store.since(place)
            except Refusal as refusal:
                await response.write(line("ERROR", refusal.body))
                break
            for change in changes:
                place = change.version
                if change.key[0] == plural and namespace in ("", change.key[1]):
                    kind = event_kind(change, labels, fields, shown)
                    if kind:
                        await response.write(line(kind, change.body))
            if not changes:
                await self.store.changed(self.bookmark_seconds)
            if not self.store.since(place) if place >= self.store.compacted else False:
                place = self.store.version
                await response.write(line("BOOKMARK", {"metadata": {"resourceVersion": str(place)}}))
        return response

    async def _write(self, request: web.Request, key: Key, part: str) -> web.Response:
        text = await request.text()
        body: Any = json.loads(text) if text else {}
        plural, namespace, name = key
        if request.method == "POST":
            metadata = body.get("metadata") or {}
            name = metadata.get("name") or f"{metadata.get('generateName', '')}{self.store.version:05x}"
            made = self.store.create((plural, namespace, name), body, bool(request.query.get("dryRun")))
            return web.json_response(made, status=201)
        if request.method == "DELETE":
            return web.json_response(self.store.delete(key, body))
        if request.method == "PUT":
            return web.json_response(self.store.replace(key, body, part))
        return web.json_response(self._patch(request, key, part, body))

    def _patch(self, request: web.Request, key: Key, part: str, patch: Any) -> Object:
        content_type, dry_run = request.content_type, bool(request.query.get("dryRun"))
        if content_type == "application/apply-patch+yaml" and key not in self.store.objects:
            return self.store.create(key, patch, dry_run)
        old = self.store.find(key)
        body = json_patch(old, patch) if content_type == "application/json-patch+json" else merge(old, patch)
        return body if dry_run else self.store.replace(key, body, "" if part == "scale" else part)


def event_kind(change: Change, labels: str, fields: str, shown: set[str]) -> str:
    """What a watcher with a selector sees: an object that begins or ceases to fit is added or deleted."""
    uid, fits = change.body["metadata"]["uid"], matches(change.body, labels, fields)
    was_shown = uid in shown
    if change.kind == "DELETED" or not fits:
        shown.discard(uid)
        return "DELETED" if was_shown or (change.kind == "DELETED" and fits) else ""
    shown.add(uid)
    return change.kind if was_shown or change.kind == "ADDED" else "ADDED"


def answer(refusal: Refusal) -> web.Response:
    return web.json_response(refusal.body, status=refusal.status)


def line(kind: str, body: Object) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


async def serve(port: int, is_isolated: bool) -> None:
    async with KubeApiServer(port=port, pods=PodRuntime(is_isolated=is_isolated)) as server:
        print(server.address, flush=True)  # noqa: T201 - the caller reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="commands are bare processes, which cost less")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, not arguments.plain))
