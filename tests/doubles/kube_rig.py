"""Providers of sandboxes on Kubernetes for tests: on the API server in memory or on the real one, with the stand-in
controllers.

async with memory_rig("kruise") as rig:
    sandbox = await rig.provider.acquire(rig.spec("one"))
"""

import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
from agent_sandbox_controller import AgentSandboxController
from kruise_controller import KruiseController
from kube_api import KubeApiServer
from pydantic import TypeAdapter

from agentic.cluster.api import KubeApi
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials, LoadedCredentials
from agentic.cluster.resources import PODS, JsonObject
from agentic.cluster.settings import KubeClientSettings
from agentic.sandbox.base import ImageReference, SandboxSpec
from agentic.sandbox.kube.provider import KubeProvider
from agentic.sandbox.kube.rights import sandbox_rules
from agentic.sandbox.providers import make_source
from agentic.sandbox.settings import AgentSandbox, KruiseSandbox, KubeSandbox, PodSandbox, SandboxSettings
from testbed.access import HOST_VARIABLE, ClusterAccess
from testbed.layout import Layout

CRDS = Path(__file__).parents[1] / "crds"
SANDBOX_GROUPS = ("agents.kruise.io", "agents.x-k8s.io")
KINDS = ("pod", "kruise", "agent-sandbox")
BASE_IMAGE = "agentic/base:local"
CLIENT = KubeClientSettings(requests_per_second=5000, request_burst=5000, retry_seconds=10)
"""A test's API server is nobody else's."""


def kube_settings(kind: str, **changes: Any) -> PodSandbox | KruiseSandbox | AgentSandbox:
    """Settings with the patience of a test."""
    fields = {
        "provider": kind,
        "base_image": BASE_IMAGE,
        "start_timeout_seconds": 20,
        "start_concurrency": 64,
        **changes,
    }
    settings: SandboxSettings = TypeAdapter(SandboxSettings).validate_python(fields)
    assert isinstance(settings, PodSandbox | KruiseSandbox | AgentSandbox)
    return settings


@dataclass
class Rig:
    """A provider, and what it talks to."""

    settings: KubeSandbox
    provider: KubeProvider
    connect: Callable[[], KubeClient]
    """Another client of the same API server; close it."""
    admin: KubeApi
    run_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex[:8]}")
    image: str = BASE_IMAGE
    server: KubeApiServer | None = None
    controller: KruiseController | AgentSandboxController | None = None

    def spec(self, sandbox_id: str, **changes: Any) -> SandboxSpec:
        fields = {"run_id": self.run_id, "sandbox_id": sandbox_id, "image": ImageReference(self.image), **changes}
        return SandboxSpec(**fields)

    def another(self, **changes: Any) -> KubeProvider:
        """A second process, as far as the API server can tell."""
        return make_provider(self.settings.model_copy(update=changes), self.connect)

    async def pods(self, labels: str = "") -> tuple[JsonObject, ...]:
        return (await self.admin.list(PODS, labels=labels)).items


def make_provider(settings: Any, connect: Callable[[], KubeClient]) -> KubeProvider:
    async def connected() -> KubeApi:
        return connect()

    return KubeProvider(settings, connected, partial(make_source, settings))


@asynccontextmanager
async def memory_rig(kind: str, *, client: KubeClientSettings = CLIENT, **changes: Any) -> AsyncIterator[Rig]:
    """On the API server in memory."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(KubeApiServer(bookmark_seconds=0.2))

        def connect(settings: KubeClientSettings = client) -> KubeClient:
            return KubeClient(FixedCredentials(Access(server.address)), settings)

        admin = await stack.enter_async_context(connect(CLIENT))
        controller = await play_controller(stack, kind, admin, kubelet=True)
        settings = kube_settings(kind, **changes)
        rig = Rig(settings, make_provider(settings, connect), connect, admin, server=server, controller=controller)
        try:
            yield rig
        finally:
            server.faults.clear()
            await rig.provider.close()


async def play_controller(
    stack: AsyncExitStack, kind: str, api: KubeApi, *, kubelet: bool
) -> KruiseController | AgentSandboxController | None:
    if kind == "kruise":
        return await stack.enter_async_context(KruiseController(api, kubelet=kubelet))
    if kind == "agent-sandbox":
        return await stack.enter_async_context(AgentSandboxController(api))
    return None


@dataclass(frozen=True)
class Space:
    """A namespace of the real cluster, and an account that has the rights of `sandbox_rules` there and no other."""

    namespace: str
    account: Path
    admin: Path
    """Kubeconfigs."""


class Spaces:
    """One for each kind of provider, made when it is asked for. A context; leaving it deletes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Space] = {}

    def __enter__(self) -> "Spaces":
        return self

    def __exit__(self, *_: object) -> None:
        for space in self._made.values():
            self._access.kubectl("delete", "namespace", space.namespace, "--wait=false")

    @cached_property
    def _access(self) -> ClusterAccess:
        """The cluster, with the schemas of the sandbox controllers."""
        if HOST_VARIABLE not in os.environ:
            pytest.exit("tests of the cluster run inside its network: make test-cluster", returncode=78)
        access = ClusterAccess(Layout.of_this_machine())
        files = [path for path in sorted(CRDS.glob("*.yaml")) if path.stem.partition(".")[2].endswith(SANDBOX_GROUPS)]
        chosen = [word for path in files for word in ("-f", str(path))]
        access.kubectl("apply", "--server-side", "--force-conflicts", *chosen)
        access.kubectl("wait", "--for=condition=Established", "--timeout=60s", *chosen)
        return access

    def of(self, kind: str) -> Space:
        if kind not in self._made:
            namespace = f"sandboxes-{uuid.uuid4().hex[:8]}"
            self._access.kubectl("create", "namespace", namespace)
            wait = ("--for=create", "serviceaccount/default", "--timeout=30s")
            self._access.kubectl("wait", f"--namespace={namespace}", *wait)
            path = self._folder / f"{kind}.kubeconfig"
            self._access.make_account("sandboxes", namespace, sandbox_rules(kube_settings(kind)), path)
            self._made[kind] = Space(namespace, path, self._access.kubeconfig)
        return self._made[kind]


@asynccontextmanager
async def cluster_rig(kind: str, space: Space, *, kubelet: bool = True, **changes: Any) -> AsyncIterator[Rig]:
    """On the real API server. With `kubelet` pods run on its node; without, kwok plays them on fake nodes."""
    async with AsyncExitStack() as stack:

        def connect(client: KubeClientSettings = CLIENT) -> KubeClient:
            return KubeClient(LoadedCredentials(space.account), client, namespace=space.namespace)

        admin = KubeClient(LoadedCredentials(space.admin), CLIENT, namespace=space.namespace)
        await stack.enter_async_context(admin)
        controller = await play_controller(stack, kind, admin, kubelet=not kubelet)
        settings = kube_settings(kind, **changes)
        rig = Rig(settings, make_provider(settings, connect), connect, admin, controller=controller)
        try:
            yield rig
        finally:
            await rig.provider.close()
