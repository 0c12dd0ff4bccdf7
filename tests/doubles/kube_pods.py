"""The kubelet of the API server double: a pod is a few namespaces over this machine's programs, by bubblewrap.

What it fakes: images (each pod sees this /usr and an empty rest), networks, resources, probes, volumes that can be
written where the root can. What it does as the real
one: a command's stream ends when all holders of its outputs have ended; a client that hangs up does not end its
command; commands start in a session of their own; a removed pod takes its processes along.
"""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from kube_store import Change, KubeStore, Object, Refusal

from agentic.sandbox.kube.manifests import PROGRAM
from agentic.sandbox.kube.wrapper import END_ALL

CHUNK_BYTES = 256 * 1024
BWRAP = ["bwrap", "--die-with-parent", "--as-pid-1"]
BWRAP += ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
BWRAP += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
BWRAP += [word for name in ("bin", "lib", "lib64", "sbin") for word in ("--symlink", f"usr/{name}", f"/{name}")]
BWRAP += ["--dir", "/app", "--dir", "/root", "--dir", "/tmp", "--chmod", "1777", "/tmp"]
PROCESS_ONE = "echo ready; exec >/dev/null; exec env --ignore-signal=CHLD sleep infinity"


@dataclass
class Pod:
    """A running pod."""

    bwrap: asyncio.subprocess.Process
    pid: int
    """Of its process 1, seen from outside."""
    streams: set[asyncio.Transport] = field(default_factory=set)


@dataclass
class PodRuntime:
    """Runs the pods of a store."""

    starts_pods: bool = True
    """Whether pods get to run by themselves; otherwise a test writes their status."""
    start_seconds: float = 0.0
    protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    is_isolated: bool = True
    """Without, commands are bare processes of this machine: for benchmarks, which know what they run."""
    idle_seconds: float = 3600.0
    """A stream without traffic for so long is cut, as load balancers do."""
    exec_server: Path | None = None
    """Runs as process 1 where a pod's command asks for it, with the network of this machine."""
    running: dict[str, Pod] = field(default_factory=dict)
    """By uid."""
    _starting: dict[str, asyncio.Task[Pod]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _store: KubeStore | None = None

    def attach(self, store: KubeStore) -> None:
        self._store = store
        store.observers.append(self._observe)

    def _observe(self, change: Change) -> None:
        if change.key[0] != "pods" or not self.starts_pods:
            return
        if change.kind == "ADDED":
            self._spawn(self._run(change.key, change.body["metadata"]["uid"]))
        elif change.kind == "DELETED":
            self.kill(change.body["metadata"]["uid"])

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: tuple[str, str, str], uid: str) -> None:
        await asyncio.sleep(self.start_seconds)
        store = self._store
        if store is None or key not in store.objects:
            return
        body = json.loads(json.dumps(store.objects[key]))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        statuses = [
            {
                "name": container["name"],
                "ready": True,
                "restartCount": 0,
                "image": container.get("image", ""),
                "containerID": f"double://{uid}",
                "state": {"running": {"startedAt": now}},
            }
            for container in body.get("spec", {}).get("containers", [{"name": "main"}])
        ]
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "Ready")]
        body["spec"]["nodeName"] = body["spec"].get("nodeName") or "node-1"
        body["status"] = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": statuses,
        }
        body["metadata"].pop("resourceVersion", None)
        store.replace(key, body, "binding")

    async def pod(self, uid: str) -> Pod:
        """Started at its first command: most pods of a test never run one."""
        if uid not in self.running:
            if uid not in self._starting:
                self._starting[uid] = asyncio.create_task(start(*self._process_one(uid)))
            pod = await asyncio.shield(self._starting[uid])
            if uid not in self._starting:
                raise Refusal(404, "NotFound", "the pod was removed while it started")
            self.running[uid] = pod
        return self.running[uid]

    def _process_one(self, uid: str) -> tuple[list[str], str]:
        """More words for bubblewrap, and what to run."""
        bodies = self._store.objects.values() if self._store is not None else ()
        body = next((body for body in bodies if body["metadata"]["uid"] == uid), {})
        container = body.get("spec", {}).get("containers", [{}])[0]
        command, root = container.get("command", []), read_only_root(container)
        if self.exec_server is None or command[:1] != [PROGRAM]:
            return ["--unshare-net", *root], PROCESS_ONE
        return ["--ro-bind", str(self.exec_server), PROGRAM, *root], f"echo ready; exec {shlex.join(command)}"

    def drop_streams(self) -> None:
        """Break all streams, as a load balancer that is restarted; commands go on."""
        for pod in self.running.values():
            for stream in pod.streams:
                stream.abort()

    def kill(self, uid: str, *, drop: bool = False) -> None:
        """End a pod's processes; with `drop` its streams break before their status."""
        pod = self.running.pop(uid, None)
        self._starting.pop(uid, None)
        if pod is None:
            return
        for stream in list(pod.streams) if drop else []:
            stream.abort()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pod.pid, signal.SIGKILL)
        self._spawn(pod.bwrap.wait())

    def kill_all(self) -> None:
        for uid in list(self.running):
            self.kill(uid, drop=True)

    async def close(self) -> None:
        """After the last handler has ended."""
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        for uid, starting in list(self._starting.items()):
            self.running.setdefault(uid, starting.result())
        self.kill_all()
        while ending := list(self._tasks):
            await asyncio.gather(*ending, return_exceptions=True)
            self._tasks.difference_update(ending)  # Gathering what has ended already never lets the loop discard it.

    async def exec(self, request: web.Request, body: Object) -> web.StreamResponse:
        if body.get("status", {}).get("phase") != "Running":
            raise Refusal(400, "BadRequest", f"pod {body['metadata']['name']} is not running")
        names = [container["name"] for container in body["spec"].get("containers", [])]
        wanted = request.query.get("container")
        if wanted and names and wanted not in names:
            raise Refusal(400, "BadRequest", f"container {wanted} is not valid for pod {body['metadata']['name']}")
        if "Upgrade" not in request.headers:
            raise Refusal(400, "BadRequest", "Upgrade request required")
        pod = await self.pod(body["metadata"]["uid"])
        socket = web.WebSocketResponse(protocols=self.protocols, autoping=False, max_msg_size=0, compress=False)
        await socket.prepare(request)
        stream = request.transport
        if not isinstance(stream, asyncio.Transport):
            return socket
        pod.streams.add(stream)
        command = Command(
            socket, stream, pod, request.query.getall("command"), "stdin" in request.query, self.is_isolated
        )
        try:
            await command.run(self.idle_seconds)
        finally:
            pod.streams.discard(stream)
            if command.process is not None:
                self._spawn(reap(command.process))
        return socket


def read_only_root(container: Object) -> list[str]:
    """Words that let a container write to its volumes alone, where it says so."""
    if not container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        return []
    paths = [mount["mountPath"] for mount in container.get("volumeMounts", []) if not mount.get("readOnly")]
    return [*(word for path in paths for word in ("--perms", "0777", "--tmpfs", path)), "--remount-ro", "/"]


async def start(more: list[str], process_one: str) -> Pod:
    """A pod; most have no network and a first process that does nothing."""
    ours, theirs = os.pipe()
    words = [*BWRAP, *more, "--info-fd", str(theirs), "/bin/sh", "-c", process_one]
    if os.geteuid() != 0:
        words[1:1] = ["--unshare-user", "--uid", "0", "--gid", "0"]
    bwrap = await asyncio.create_subprocess_exec(
        *words, pass_fds=(theirs,), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    os.close(theirs)
    if bwrap.stdout is None or await bwrap.stdout.readline() != b"ready\n":
        raise Refusal(500, "InternalError", "bubblewrap did not start a pod")
    with os.fdopen(ours, "rb") as info:
        return Pod(bwrap, json.load(info)["child-pid"])


async def reap(process: asyncio.subprocess.Process) -> None:
    """Until a command has ended, whoever listens."""
    if process.stdin is not None:
        process.stdin.close()
    for stream in (process.stdout, process.stderr):
        while stream is not None and await stream.read(CHUNK_BYTES):
            pass
    await process.wait()


@dataclass
class Command:
    """One command of one stream."""

    socket: web.WebSocketResponse
    stream: asyncio.Transport
    pod: Pod
    words: list[str]
    has_stdin: bool
    is_isolated: bool
    active_at: float = field(default_factory=time.monotonic)
    process: asyncio.subprocess.Process | None = None

    async def run(self, idle_seconds: float) -> None:
        process = self.process = await self._start()
        pumping = [
            asyncio.create_task(self._pump(process.stdout, 1)),
            asyncio.create_task(self._pump(process.stderr, 2)),
        ]
        others = [asyncio.create_task(self._listen(process)), asyncio.create_task(self._cut_when_idle(idle_seconds))]
        try:
            await asyncio.gather(*pumping)
            code = await process.wait()
            await self._end(128 - code if code < 0 else code)
        except ConnectionError:
            pass  # The client has gone; its command goes on.
        finally:
            for task in (*pumping, *others):
                task.cancel()
            await asyncio.gather(*pumping, *others, return_exceptions=True)

    async def _start(self) -> asyncio.subprocess.Process:
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        enter = ["nsenter", "-t", str(self.pod.pid), *user, "-m", "-p", "-i", "-u", "-n", "-r", "-w", "setsid"]
        if not self.is_isolated:
            enter = []
            if END_ALL in self.words:
                raise Refusal(403, "Forbidden", "all processes would be those of the machine")
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *enter,
            *self.words,
            stdin=pipe if self.has_stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"},
            limit=CHUNK_BYTES,
        )

    async def _pump(self, stream: asyncio.StreamReader | None, channel: int) -> None:
        while stream is not None and (data := await stream.read(CHUNK_BYTES)):
            self.active_at = time.monotonic()
            await self.socket.send_bytes(bytes((channel,)) + data)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        await self._take_input(process)
        if process.stdin is not None:
            process.stdin.close()  # As containerd does when a client hangs up.

    async def _take_input(self, process: asyncio.subprocess.Process) -> None:
        async for kind, data in messages(self.socket):
            self.active_at = time.monotonic()
            if kind is WSMsgType.PING:
                await self.socket.pong(data)
            elif kind is WSMsgType.BINARY and process.stdin is not None:
                with contextlib.suppress(ConnectionError):
                    if data[0] == 0:
                        process.stdin.write(data[1:])
                        await process.stdin.drain()
                    elif data == b"\xff\x00" and self.socket.ws_protocol == "v5.channel.k8s.io":
                        process.stdin.close()

    async def _cut_when_idle(self, seconds: float) -> None:
        while (left := self.active_at + seconds - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self.stream.abort()

    async def _end(self, code: int) -> None:
        status: Object = {"metadata": {}, "status": "Success"}
        if code:
            cause = {"reason": "ExitCode", "message": str(code)}
            message = f"command terminated with non-zero exit code: exit status {code}"
            status = {"status": "Failure", "reason": "NonZeroExitCode", "message": message}
            status |= {"metadata": {}, "details": {"causes": [cause]}}
        await self.socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await self.socket.close()


async def messages(socket: web.WebSocketResponse) -> AsyncIterator[tuple[WSMsgType, Any]]:
    """Until the other end closes."""
    while True:
        message = await socket.receive()
        if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return
        yield message.type, message.data
