"""A Workflow is followed through whatever happens to the API server, and no longer than one is allowed to."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from argo_documents import ArgoWorkflow
from kube_api import Fault, KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import CredentialsError, ForbiddenError
from agentic.cluster.resources import WORKFLOWS
from agentic.cluster.settings import KubeClientSettings
from workflows.argo.api import GoneError
from workflows.argo.kube import KubeWorkflows
from workflows.pipeline import build_workflow
from workflows.settings import load_settings

KEY = ("workflows.argoproj.io", "default", "agentic-rl-first")


@pytest.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    """With a Workflow that goes on."""
    async with KubeApiServer() as server:
        document = build_workflow(load_settings("demo", [], {}), "demo", "first")
        made = ArgoWorkflow("agentic-rl-first", document, "Running")
        del made.body["metadata"]["labels"]["workflows.argoproj.io/completed"]
        server.store.create(KEY, made.body)
        yield server


@pytest.fixture
async def workflows(server: KubeApiServer) -> AsyncIterator[KubeWorkflows]:
    quick = KubeClientSettings(retry_seconds=0.5)
    async with KubeClient(FixedCredentials(Access(server.address)), quick) as client:
        yield KubeWorkflows(client, look_seconds=0.3)


async def change(server: KubeApiServer, **labels: str) -> None:
    body = server.store.objects[KEY]
    metadata = {**body["metadata"], "labels": {**body["metadata"]["labels"], **labels}}
    server.store.replace(KEY, {**body, "metadata": metadata})


async def test_an_outage_is_outlived(server: KubeApiServer, workflows: KubeWorkflows) -> None:
    following: AsyncIterator[Any] = workflows.follow("agentic-rl-first")
    await anext(following)
    server.faults.append(Fault(status=503, times=8))
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(1.5)
    await change(server, seen="again")
    assert (await waiting)["metadata"]["labels"]["seen"] == "again"
    await change(server, **{"workflows.argoproj.io/completed": "true"})
    assert [found["metadata"]["labels"]["seen"] async for found in following] == ["again"]


@pytest.mark.parametrize(("status", "error"), [(401, CredentialsError), (403, ForbiddenError)])
async def test_who_is_refused_meanwhile_hears_of_it(
    server: KubeApiServer, workflows: KubeWorkflows, status: int, error: type[Exception]
) -> None:
    """A token that ran out must not leave a display that stands still."""
    following: AsyncIterator[Any] = workflows.follow("agentic-rl-first")
    await anext(following)
    server.faults.append(Fault(status=status, times=10_000))
    with pytest.raises(error):
        await anext(following)


async def test_one_that_is_deleted_is_gone(server: KubeApiServer, workflows: KubeWorkflows) -> None:
    following: AsyncIterator[Any] = workflows.follow("agentic-rl-first")
    await anext(following)
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.5)
    assert WORKFLOWS.name == KEY[0]
    server.store.delete(KEY, {})
    with pytest.raises(GoneError):
        await waiting
