"""From settings to a provider and its store: the one place that knows all implementations."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentic.sandbox.base import SandboxProvider
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import (
    AgentSandbox,
    BubblewrapSandbox,
    DockerSandbox,
    KruiseSandbox,
    KubeSandbox,
    PodmanSandbox,
    PodSandbox,
    SandboxSettings,
    UnsafeProcessSandbox,
)

if TYPE_CHECKING:
    from agentic.cluster.api import KubeApi
    from agentic.sandbox.kube.source import Source


def open_store(root: Path, settings: SandboxSettings) -> RootfsStore:
    """The root-folder store for sandboxes of these settings. Their root user owns its layers; as root, we give
    bubblewrap's sandboxes unprivileged ids of their own."""
    if isinstance(settings, BubblewrapSandbox) and os.geteuid() == 0:
        return RootfsStore(root, settings.subordinate_uid)
    return RootfsStore(root)


def make_provider(settings: SandboxSettings, store: RootfsStore) -> SandboxProvider:
    """The provider of these settings. Call it within the event loop that will use it."""
    match settings:
        case BubblewrapSandbox():
            from agentic.sandbox.local.bubblewrap import BubblewrapProvider

            return BubblewrapProvider(settings, store)
        case PodmanSandbox() | DockerSandbox():
            from agentic.sandbox.local.container import ContainerProvider

            return ContainerProvider(settings, store)
        case UnsafeProcessSandbox():
            from agentic.sandbox.local.process import ProcessProvider

            return ProcessProvider(settings, store)
        case PodSandbox() | KruiseSandbox() | AgentSandbox():
            from agentic.sandbox.kube.provider import KubeProvider

            return KubeProvider(settings, partial(connect_cluster, settings), partial(make_source, settings))


async def connect_cluster(settings: KubeSandbox) -> "KubeApi":
    """The API server that KUBECONFIG names, or that of the cluster that we run in, and the sandboxes' namespace."""
    from agentic.cluster.client import KubeClient
    from agentic.cluster.credentials import LoadedCredentials

    credentials = LoadedCredentials()
    namespace = settings.namespace or (await credentials.access()).namespace
    return KubeClient(credentials, settings.api, namespace=namespace)


def make_source(settings: PodSandbox | KruiseSandbox | AgentSandbox, api: "KubeApi") -> "Source":
    """Where the pods of sandboxes of these settings come from."""
    match settings:
        case PodSandbox():
            from agentic.sandbox.kube.pod import PodSource

            return PodSource(api, settings)
        case KruiseSandbox():
            from agentic.sandbox.kube.kruise import KruiseSource

            return KruiseSource(api, settings)
        case AgentSandbox():
            from agentic.sandbox.kube.agent_sandbox import AgentSandboxSource

            return AgentSandboxSource(api, settings)
