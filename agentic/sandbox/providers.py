"""From settings to a provider and its store: the one place that knows all implementations."""

import os
from pathlib import Path

from agentic.sandbox.base import SandboxProvider
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import (
    BubblewrapSandbox,
    DockerSandbox,
    PodmanSandbox,
    SandboxSettings,
    UnsafeProcessSandbox,
)


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
