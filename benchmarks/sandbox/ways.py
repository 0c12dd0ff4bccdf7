"""Ways to run a command in a pod and to move a file: ours, and those that it is measured beside.

Each runs the same words in a pod of the same image on the same node, and checks the exit code, so that none is fast by
failing. `Kubelet` is the floor: kubelet's own exec endpoint, without the API server, and without a shell of ours.
"""

import asyncio
import json
import os
import ssl
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp

from agentic.sandbox.base import ImageReference, Sandbox, SandboxSpec
from agentic.sandbox.errors import SandboxLostError
from benchmarks.sandbox.measuring import WrongResultError
from testbed.layout import Layout

WORDS = ("/bin/sh", "-c", "true")
CONTAINER = "sandbox"
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""kubelet hands the stream through to containerd, which knows the older one only."""


def spec_of(name: str, image: str) -> SandboxSpec:
    return SandboxSpec("benchmark", name, ImageReference(image))


def check(way: str, what: str, expected: object, got: object) -> None:
    if expected != got:
        raise WrongResultError(f"{way}: {what} should be {expected!r} but is {got!r}")


class Way(Protocol):
    """One of those that are compared. Entered before use."""

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def run(self, pod: int) -> None:
        """One command in the pod of that number, to its end."""
        ...


class Mover(Protocol):
    """Those that move files too."""

    name: str

    async def upload(self, source: Path, target: str) -> None: ...

    async def download(self, source: str, target: Path) -> None: ...


class _Plain:
    """Nothing to open or close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class Ours(_Plain):
    """Sandboxes of the provider `pod`: a command has limits on time and output, and is killed with all it started."""

    def __init__(self, sandboxes: list[Sandbox], name: str = "ours") -> None:
        self._sandboxes = sandboxes
        self.name = name

    @property
    def pods(self) -> list[str]:
        return [sandbox.name for sandbox in self._sandboxes]  # type: ignore[attr-defined]

    async def run(self, pod: int) -> None:
        try:
            result = await self._sandboxes[pod].exec(WORDS)
        except SandboxLostError as error:
            raise WrongResultError(f"{self.name}: {error}") from error
        check(self.name, "the exit code", 0, result.exit_code)

    async def upload(self, source: Path, target: str) -> None:
        await self._sandboxes[0].upload(source, target)

    async def download(self, source: str, target: Path) -> None:
        await self._sandboxes[0].download(source, target)


class Kubelet:
    """kubelet's exec endpoint over WebSocket, with the API server's own client certificate."""

    name = "kubelet"

    def __init__(self, layout: Layout, namespace: str, pods: list[str]) -> None:
        self._pods, self._namespace = pods, namespace
        self._server = f"https://{layout.host_ip}:10250"
        self._tls = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        self._tls.load_cert_chain(layout.pki / "kubelet-client.crt", layout.pki / "kubelet-client.key")

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def run(self, pod: int) -> None:
        query = [("output", "1"), ("error", "1"), *(("command", word) for word in WORDS)]
        url = f"{self._server}/exec/{self._namespace}/{self._pods[pod]}/{CONTAINER}"
        status = b"{}"
        try:
            async with self._session.ws_connect(url, params=query, protocols=PROTOCOLS) as socket:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x03":
                        status = message.data[1:]
        except (aiohttp.ClientError, OSError) as error:
            raise WrongResultError(f"{self.name}: {type(error).__name__}: {error}") from error
        check(self.name, "the status", "Success", json.loads(status).get("status"))


class OfficialClient:
    """`kubernetes.stream` of the official client, one thread for each command that runs at the same time."""

    name = "kubernetes client"

    def __init__(self, namespace: str, pods: list[str], threads: int) -> None:
        self._namespace, self._pods, self._threads = namespace, pods, threads

    async def __aenter__(self) -> Self:
        from kubernetes import client, config

        config.load_kube_config()
        self._api = client.CoreV1Api()
        self._executor = ThreadPoolExecutor(self._threads)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._api.api_client.close()

    async def run(self, pod: int) -> None:
        from kubernetes.client import ApiException
        from websocket import WebSocketException

        try:
            code = await asyncio.get_running_loop().run_in_executor(self._executor, self._run, self._pods[pod])
        except (ApiException, WebSocketException, OSError) as error:
            raise WrongResultError(f"{self.name}: {type(error).__name__}: {str(error)[:200]}") from error
        check(self.name, "the exit code", 0, code)

    def _run(self, pod: str) -> int:
        from kubernetes import client
        from kubernetes.stream import stream

        # An API object for each call: `stream` swaps the request method of the one that it is given.
        call = client.CoreV1Api(client.ApiClient()).connect_get_namespaced_pod_exec
        opened: Any = stream(
            call,
            pod,
            self._namespace,
            command=list(WORDS),
            stdout=True,
            stderr=True,
            stdin=False,
            _preload_content=False,
        )
        opened.run_forever()
        code: int = opened.returncode
        opened.close()
        return code


REQUESTS = {"cpu": "1m", "memory": "8Mi", "ephemeral-storage": "16Mi"}
"""ACKEnvironment's own would reserve a whole core for each pod, and the node has two."""
NOT_ISOLATED = {"securityContext": {"privileged": False}, "resources": {"requests": REQUESTS}}
ISOLATED = {
    "securityContext": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "resources": {"requests": REQUESTS, "limits": {"cpu": "1", "memory": "768Mi"}},
}


class Ack:
    """Harbor's ACKEnvironment, with pods that it starts itself, isolated and limited as ours are.

    Its own default is a privileged pod without a seccomp profile; a command starts faster there, since the container
    runtime compiles the profile anew for each. `is_isolated=False` measures such pods, with the privileges left out.
    """

    def __init__(self, namespace: str, image: str, *, is_isolated: bool = True, **options: Any) -> None:
        self.name = "ACKEnvironment" if is_isolated else "ACKEnvironment, not isolated"
        self._namespace, self._image, self._options = namespace, image, options
        self._container = ISOLATED if is_isolated else NOT_ISOLATED
        self._folder = tempfile.TemporaryDirectory()
        self._environments: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def start(self, number: int, environment_name: str = "ack") -> None:
        """What `acquire` is to us."""
        from harbor.environments.ack import ACKEnvironment
        from harbor.models.task.config import EnvironmentConfig
        from harbor.models.trial.paths import TrialPaths

        folder = Path(self._folder.name) / str(number)
        (folder / "environment").mkdir(parents=True)
        (folder / "environment/Dockerfile").write_text(f"FROM {self._image}\n")
        environment = ACKEnvironment(
            environment_dir=folder / "environment",
            environment_name=environment_name,
            session_id=f"{environment_name}-{number}",
            trial_paths=TrialPaths(trial_dir=folder / "trial"),
            task_env_config=EnvironmentConfig(docker_image=self._image, cpus=1, memory_mb=768, storage_mb=512),
            namespace=self._namespace,
            kubeconfig=os.environ["KUBECONFIG"],
            pod_overrides={"spec": {"terminationGracePeriodSeconds": 1, "containers": [self._container]}},
            **self._options,
        )
        self._environments.append(environment)
        await environment.start(force_build=False)

    async def __aexit__(self, *_: object) -> None:
        for environment in self._environments:
            await environment.stop(delete=True)
        self._folder.cleanup()

    async def run(self, pod: int) -> None:
        result = await self._environments[pod].exec(" ".join(("sh", "-c", "true")))
        check(self.name, f"the exit code ({(result.stderr or '')[:200]})", 0, result.return_code)

    async def upload(self, source: Path, target: str) -> None:
        await self._environments[0].upload_file(source, target)

    async def download(self, source: str, target: Path) -> None:
        await self._environments[0].download_file(source, target)


class Kubectl:
    """`kubectl cp`, and `kubectl exec` one process a command."""

    name = "kubectl"

    def __init__(self, namespace: str, pods: list[str]) -> None:
        self._namespace, self._pods = namespace, pods

    async def upload(self, source: Path, target: str) -> None:
        await self._kubectl("cp", str(source), f"{self._namespace}/{self._pods[0]}:{target}")

    async def download(self, source: str, target: Path) -> None:
        await self._kubectl("cp", f"{self._namespace}/{self._pods[0]}:{source}", str(target))

    async def _kubectl(self, *words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            "kubectl", *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        check(self.name, f"the exit code of {words[0]} ({errors.decode().strip()[-200:]})", 0, process.returncode)
