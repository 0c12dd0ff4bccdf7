"""Stores and providers over temporary folders."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from kube_rig import Spaces

from agentic.sandbox.base import SandboxSpec
from agentic.sandbox.local.bubblewrap import BubblewrapProvider
from agentic.sandbox.providers import open_store
from agentic.sandbox.rootfs import RootfsStore
from agentic.sandbox.settings import BubblewrapSandbox

MakeSpec = Callable[..., SandboxSpec]


@pytest.fixture(scope="session")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spaces]:
    """Namespaces and accounts of the real cluster; for tests marked `cluster`."""
    with Spaces(tmp_path_factory.mktemp("spaces")) as spaces:
        yield spaces


@pytest.fixture(scope="session")
def bubblewrap_settings() -> BubblewrapSandbox:
    return BubblewrapSandbox(memory_mb=160, scratch_mb=64, max_processes=64, output_limit_bytes=64 * 1024)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, bubblewrap_settings: BubblewrapSandbox) -> RootfsStore:
    return open_store(tmp_path_factory.mktemp("images"), bubblewrap_settings)


@pytest_asyncio.fixture
async def provider(store: RootfsStore, bubblewrap_settings: BubblewrapSandbox) -> AsyncIterator[BubblewrapProvider]:
    provider = BubblewrapProvider(bubblewrap_settings, store)
    yield provider
    await provider.close()


@pytest.fixture
def make_spec(store: RootfsStore, tmp_path: Path) -> MakeSpec:
    numbers = itertools.count()

    def make(**changes: object) -> SandboxSpec:
        spec = {"run_id": "test", "sandbox_id": f"{tmp_path.name}-{next(numbers)}", "image": store.ensure_base()}
        return SandboxSpec(**{**spec, **changes})  # type: ignore[arg-type]

    return make
