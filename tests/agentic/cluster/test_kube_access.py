"""Rights as Roles, what an account lacks, and sweeping by label."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.access import READ, Rule, account, missing_rights
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import CONFIG_MAPS, JOBS, SECRETS, JsonObject
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.sweeping import sweep

RULES = [Rule("", ("pods",), (*READ, "create")).body, Rule("", ("pods/exec",), ("get", "create")).body]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    settings = KubeClientSettings(retry_seconds=5)
    async with KubeClient(FixedCredentials(Access(server.address)), settings, namespace="rl") as api:
        yield api


def test_an_account_has_its_rules_in_its_namespace_and_no_token_in_pods() -> None:
    service_account, role, binding = account("sandboxes", RULES, "rl", labels={"a": "b"})
    assert service_account["automountServiceAccountToken"] is False
    assert [body["kind"] for body in (role, binding)] == ["Role", "RoleBinding"]
    assert role["rules"][1] == {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}
    assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == "sandboxes"
    assert {body["metadata"]["namespace"] for body in (service_account, role, binding)} == {"rl"}
    assert "*" not in str(role)


async def test_what_an_account_lacks_is_listed_by_name(api: KubeClient, server: KubeApiServer) -> None:
    def review(verb: str, plural: str, body: JsonObject) -> JsonObject:
        right: dict[str, Any] = body["spec"]["resourceAttributes"]
        return {**body, "status": {"allowed": right.get("subresource") != "exec" and right["namespace"] == "rl"}}

    server.store.admit.append(review)
    assert await missing_rights(api, RULES) == ["create pods/exec", "get pods/exec"]


async def test_sweeping_takes_what_is_labelled_and_may_be_repeated(api: KubeClient, server: KubeApiServer) -> None:
    for name, run in [("a", "r1"), ("b", "r1"), ("c", "r2")]:
        await api.create(CONFIG_MAPS, CONFIG_MAPS.head(name, labels={"run": run}))
    await api.create(JOBS, JOBS.head("j", labels={"run": "r1"}))
    server.faults.append(Fault(method="DELETE", status=500, times=2))
    swept = await sweep(
        api, [JOBS, CONFIG_MAPS, SECRETS], "run=r1", spared=lambda body: body["metadata"]["name"] == "b"
    )
    assert swept == ["jobs/j", "configmaps/a"]
    assert await sweep(api, [JOBS, CONFIG_MAPS], "run=r1") == ["configmaps/b"]
    assert await sweep(api, [JOBS, CONFIG_MAPS], "run=r1") == []
    assert len((await api.list(CONFIG_MAPS)).items) == 1
    with pytest.raises(ValueError, match="needs labels"):
        await sweep(api, [CONFIG_MAPS], "")
