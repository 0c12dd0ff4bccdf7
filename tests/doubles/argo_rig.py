"""Argo of the cluster for tests, in one namespace: stand-in workflows are created there and waited for."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from stand_in_workflow import ACCOUNT

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.resources import JsonObject, name_of
from testbed.access import ClusterAccess, Rules
from workflows.argo.kube import KubeWorkflows

PATIENCE_SECONDS = 300.0
"""For a whole run: the machine may be busy with other tests."""

TASK_RESULTS: Rules = [
    {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
]


@dataclass(frozen=True)
class ArgoRig:
    """Workflows of a test's namespace."""

    cluster: ClusterAccess
    namespace: str

    @property
    def settings(self) -> list[str]:
        """For the command line."""
        return ["--target=argo", f"cluster.namespace={self.namespace}", f"cluster.service_account={ACCOUNT}"]

    @asynccontextmanager
    async def workflows(self) -> AsyncIterator[KubeWorkflows]:
        async with KubeClient(LoadedCredentials(self.cluster.kubeconfig), namespace=self.namespace) as client:
            yield KubeWorkflows(client)

    def create(self, document: JsonObject) -> None:
        async def create() -> None:
            async with self.workflows() as workflows:
                await workflows.create(document)

        asyncio.run(create())

    async def retry(self, name: str) -> None:
        async with self.workflows() as workflows:
            await workflows.retry(name)

    def get(self, name: str) -> JsonObject:
        return self.cluster.get("workflow", name, f"--namespace={self.namespace}")

    def names(self, run_id: str) -> list[str]:
        """The Workflows of a run."""
        found = self.cluster.get("workflows", f"--namespace={self.namespace}", f"--selector=agentic-rl/run={run_id}")
        return [name_of(item) for item in found["items"]]

    def until_over(self, name: str, patience_seconds: float = PATIENCE_SECONDS) -> JsonObject:
        """The Workflow when it has ended, its exit handler included."""

        async def follow() -> JsonObject:
            seen: JsonObject = {}
            async with self.workflows() as workflows, asyncio.timeout(patience_seconds):
                async for workflow in workflows.follow(name):
                    seen = workflow
            return seen

        return asyncio.run(follow())


def until(look: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What `look` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.2)
    return found
