"""Rights of who submits: those that a run needs, and those to make what is not there yet."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from kube_api import KubeApiServer

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.doctor import Facts
from agentic.cluster.doctor.asking import check_rights
from agentic.cluster.objects.claims import claims
from agentic.cluster.resources import CLAIMS, JsonObject
from agentic.cluster.settings import ClusterSettings

CLUSTER = ClusterSettings(namespace="rl")


@pytest_asyncio.fixture
async def client() -> AsyncIterator[KubeClient]:
    """Of an account that may read and make nothing."""

    def review(verb: str, plural: str, body: JsonObject) -> JsonObject:
        right: dict[str, Any] = body.get("spec", {}).get("resourceAttributes", {})
        return {**body, "status": {"allowed": right["verb"] in ("get", "list")}} if right else body

    async with KubeApiServer() as server:
        server.store.admit.append(review)
        async with KubeClient(FixedCredentials(Access(server.address)), namespace="rl") as client:
            yield client


async def test_who_submits_has_to_be_able_to_make_what_is_not_there(client: KubeClient) -> None:
    (trouble,) = await check_rights(client, Facts(CLUSTER, makes_what_lacks=True))
    assert trouble.name == "right-missing"
    for right in ("create persistentvolumeclaims", "create serviceaccounts", "patch roles.rbac.authorization.k8s.io"):
        assert right in trouble.message


async def test_what_an_admin_has_made_needs_no_right_to_make_it(client: KubeClient) -> None:
    for claim in claims(CLUSTER):
        await client.create(CLAIMS, claim)
    (trouble,) = await check_rights(client, Facts(CLUSTER, makes_what_lacks=True))
    assert "persistentvolumeclaims" not in trouble.message


async def test_a_pod_of_the_run_makes_none_of_it(client: KubeClient) -> None:
    assert await check_rights(client, Facts(CLUSTER)) == []
