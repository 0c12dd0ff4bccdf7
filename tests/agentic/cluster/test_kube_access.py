"""Rights as Roles, and what an account lacks."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from kube_api import KubeApiServer

from agentic.cluster.access import Rule, account, missing_rights
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import JsonObject
from agentic.cluster.settings import KubeClientSettings

RULES = [Rule("", ("pods",), ("get", "list", "watch", "create")).body, Rule("", ("pods/exec",), ("get", "create")).body]


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
