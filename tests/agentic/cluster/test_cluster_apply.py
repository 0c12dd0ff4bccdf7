"""Objects of ours are applied again and again; others', and those of other runs, are left as they are."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kube_api import KubeApiServer

from agentic.cluster.apply import apply, with_owner
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import ForeignObjectError, ObjectEndingError, OtherRunError
from agentic.cluster.labels import labels_of_run, shared_labels
from agentic.cluster.objects.claims import claims
from agentic.cluster.resources import CLAIMS, CONFIG_MAPS, PODS, JsonObject
from agentic.cluster.settings import ClusterSettings, KubeClientSettings


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    settings = KubeClientSettings(retry_seconds=5)
    async with KubeClient(FixedCredentials(Access(server.address)), settings, namespace="rl") as api:
        yield api


def config(run: str | None, **data: str) -> JsonObject:
    labels = labels_of_run(run) if run else shared_labels()
    return {**CONFIG_MAPS.head("c", namespace="rl", labels=labels), "data": data}


async def test_a_repeat_changes_nothing_and_a_newer_version_what_it_says(api: KubeClient) -> None:
    first = await apply(api, config("r1", a="1"))
    again = await apply(api, config("r1", a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert (await apply(api, config("r1", a="2")))["data"] == {"a": "2"}


async def test_an_object_of_somebody_else_is_refused_by_name(api: KubeClient) -> None:
    await api.create(CONFIG_MAPS, {**CONFIG_MAPS.head("c", labels={"app": "x"}), "data": {"a": "1"}})
    with pytest.raises(ForeignObjectError, match="ConfigMap c exists and was not made by this project"):
        await apply(api, config("r1", a="2"))
    assert (await api.get(CONFIG_MAPS, "c"))["data"] == {"a": "1"}


async def test_an_object_of_another_run_is_refused_with_the_way_out(api: KubeClient) -> None:
    await apply(api, config("r1"))
    with pytest.raises(OtherRunError, match=r"ConfigMap c belongs to run r1: .*submit\.py cleanup r1"):
        await apply(api, config("r2"))
    with pytest.raises(OtherRunError, match="ConfigMap c belongs to run r1"):
        await apply(api, config(None))


async def test_a_runs_object_never_takes_over_a_shared_one(api: KubeClient) -> None:
    await apply(api, config(None))
    with pytest.raises(OtherRunError, match="ConfigMap c is shared by all runs"):
        await apply(api, config("r1"))


async def test_an_object_on_its_way_out_is_waited_for_by_trying_again(api: KubeClient) -> None:
    await apply(api, config("r1"))
    await api.patch(CONFIG_MAPS, "c", {"metadata": {"finalizers": ["x/y"]}})
    await api.delete(CONFIG_MAPS, "c")
    with pytest.raises(ObjectEndingError, match="ConfigMap c is being deleted: try again"):
        await apply(api, config("r1"))


async def test_a_claim_that_exists_is_adopted_as_it_is(api: KubeClient) -> None:
    manifest = claims(ClusterSettings(namespace="rl"))[0]
    by_hand = {**CLAIMS.head("verl-models"), "spec": {"resources": {"requests": {"storage": "1Ti"}}}}
    await api.create(CLAIMS, by_hand)
    assert (await apply(api, manifest))["spec"]["resources"]["requests"]["storage"] == "1Ti"
    assert "labels" not in (await api.get(CLAIMS, "verl-models"))["metadata"]


async def test_what_has_an_owner_goes_with_it(api: KubeClient, server: KubeApiServer) -> None:
    owner = {"kind": "Pod", "apiVersion": "v1", **await api.create(PODS, PODS.head("owner"))}
    made = await apply(api, config("r1"), owner=owner)
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner["metadata"]["uid"]}
    ]
    assert with_owner(config("r1"), None) == config("r1")


async def test_a_dry_run_changes_nothing(api: KubeClient) -> None:
    await api.apply(CONFIG_MAPS, config("r1", a="1"), dry_run=True)
    assert (await api.list(CONFIG_MAPS)).items == ()
    await apply(api, config("r1", a="1"))
    assert (await api.apply(CONFIG_MAPS, config("r1", a="2"), dry_run=True))["data"] == {"a": "2"}
    assert (await api.get(CONFIG_MAPS, "c"))["data"] == {"a": "1"}
