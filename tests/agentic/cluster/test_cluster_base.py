"""What the runs of a namespace share: made, adopted or refused, and claims waited for with an eye on why."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer

from agentic.cluster.base import SELECTED_NODE, ensure_base, wait_for_claims
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import ForbiddenError, ForeignObjectError, StorageMisfitError, WaitTimeoutError
from agentic.cluster.objects.rights import MoreRights, pipeline_rules, rights
from agentic.cluster.resources import (
    CLAIMS,
    EVENTS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    STORAGE_CLASSES,
    JsonObject,
    name_of,
)
from agentic.cluster.settings import ClusterSettings, KubeClientSettings
from agentic.cluster.storage import DEFAULT_CLASS

NAMES = ["verl-models", "verl-dataset", "verl-runs"]
BOXES = MoreRights("kruise", [{"apiGroups": ["agents.kruise.io"], "resources": ["sandboxclaims"], "verbs": ["get"]}])


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    settings = KubeClientSettings(retry_seconds=5)
    async with KubeClient(FixedCredentials(Access(server.address)), settings, namespace="rl") as api:
        default = STORAGE_CLASSES.head("nas", annotations={DEFAULT_CLASS: "true"})
        await api.create(STORAGE_CLASSES, {**default, "provisioner": "nasplugin.csi.alibabacloud.com"})
        yield api


def settings(**more: Any) -> ClusterSettings:
    return ClusterSettings.model_validate({"namespace": "rl", "bound_timeout_seconds": 20, **more})


def bind_at_once(server: KubeApiServer) -> None:
    """As a driver that is quick."""

    def bind(verb: str, kind: str, body: JsonObject) -> JsonObject:
        bound = {"status": {"phase": "Bound"}} if verb == "create" and kind == CLAIMS.plural else {}
        return {**body, **bound}

    server.store.admit.append(bind)


async def say(api: KubeClient, claim: str, reason: str, message: str, kind: str = "Warning") -> None:
    body = {"involvedObject": {"kind": CLAIMS.kind, "name": claim}, "reason": reason, "message": message, "type": kind}
    await api.create(EVENTS, {**EVENTS.head(f"{claim}.{reason.lower()}"), **body})


async def bind(api: KubeClient, name: str) -> None:
    await api.patch(CLAIMS, name, {"status": {"phase": "Bound"}}, subresource="status")


async def make(api: KubeClient, name: str, **metadata: Any) -> None:
    await api.create(CLAIMS, {**CLAIMS.head(name, **metadata), "spec": {}, "status": {"phase": "Pending"}})


async def test_claims_and_account_are_made_once_and_found_the_second_time(
    api: KubeClient, server: KubeApiServer
) -> None:
    bind_at_once(server)
    first = await ensure_base(api, settings(), [BOXES])
    assert first[:3] == [
        "claim verl-models is made (50Gi, ReadWriteMany)",
        "claim verl-dataset is made (100Gi, ReadWriteMany)",
        "claim verl-runs is made (200Gi, ReadWriteMany)",
    ]
    assert "claim verl-models is bound" in first
    roles = {name_of(body) for body in (await api.list(ROLES)).items}
    assert roles == {"rayclustertest", "rayclustertest-kruise"}
    again = await ensure_base(api, settings(), [BOXES])
    assert again[0] == "claim verl-models is there (50Gi, ReadWriteMany)"
    assert again[3:] == first[3:]


async def test_nothing_is_made_when_the_storage_would_not_do(api: KubeClient, server: KubeApiServer) -> None:
    models = {"claim": "verl-models", "size": "1Gi", "storage": "block"}
    with pytest.raises(StorageMisfitError, match=r"cluster\.models\.storage is block.*cluster\.workers\.replicas is 1"):
        await ensure_base(api, settings(models=models, workers={"replicas": 1}))
    assert [request for request in server.requests if not request.startswith("GET")] == [
        "POST /apis/storage.k8s.io/v1/storageclasses"
    ]


async def test_who_may_not_look_at_nodes_and_classes_goes_on_without(api: KubeClient, server: KubeApiServer) -> None:
    bind_at_once(server)
    for path in ("/nodes", "/storageclasses", "/persistentvolumes"):
        server.faults.append(Fault(method="GET", path=path, status=403))
    assert "claim verl-runs is bound" in await ensure_base(api, settings())


async def test_an_account_that_an_admin_made_is_taken_by_who_may_not_make_one(
    api: KubeClient, server: KubeApiServer
) -> None:
    bind_at_once(server)
    server.faults.append(Fault(method="PATCH", path="/(serviceaccounts|roles|rolebindings)/", status=403, times=99))
    with pytest.raises(ForbiddenError, match=r"there is no ServiceAccount rayclustertest: have an admin apply.*render"):
        await ensure_base(api, settings())
    server.faults.clear()
    await ensure_base(api, settings())
    server.faults.append(Fault(method="PATCH", path="/(serviceaccounts|roles|rolebindings)/", status=403, times=99))
    assert "Role rayclustertest is there, and not ours to change" in await ensure_base(api, settings())


async def test_what_may_not_be_looked_at_is_not_told_as_seen(api: KubeClient, server: KubeApiServer) -> None:
    bind_at_once(server)
    server.faults.append(Fault(path="/(serviceaccounts|roles|rolebindings)/", status=403, times=99))
    done = await ensure_base(api, settings())
    assert "Role rayclustertest is not ours to look at, hence taken to be there, and not ours to change" in done


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"subjects": []}, "ServiceAccount rayclustertest as a subject"),
        ({"subjects": [{"kind": "User", "name": "rayclustertest"}]}, "ServiceAccount rayclustertest as a subject"),
        ({"roleRef": {"kind": "Role", "name": "view"}}, r"Role rayclustertest \(it gives view\)"),
    ],
)
async def test_a_binding_of_somebody_else_has_to_bind_the_account(
    api: KubeClient, server: KubeApiServer, change: JsonObject, lacks: str
) -> None:
    bind_at_once(server)
    (binding,) = (body for body in rights(settings()) if body["kind"] == ROLE_BINDINGS.kind)
    bare = {**binding, "metadata": {"name": "rayclustertest"}}
    await api.create(ROLE_BINDINGS, {**bare, **change})
    with pytest.raises(ForeignObjectError, match=f"RoleBinding rayclustertest is not ours to change and lacks {lacks}"):
        await ensure_base(api, settings())
    await api.delete(ROLE_BINDINGS, "rayclustertest")
    await api.create(ROLE_BINDINGS, bare)
    assert "RoleBinding rayclustertest is there, made by somebody else" in await ensure_base(api, settings())


async def test_a_role_of_somebody_else_has_to_give_enough(api: KubeClient, server: KubeApiServer) -> None:
    bind_at_once(server)
    rules = pipeline_rules()
    await api.create(SERVICE_ACCOUNTS, SERVICE_ACCOUNTS.head("rayclustertest"))
    await api.create(ROLES, {**ROLES.head("rayclustertest"), "rules": rules[1:]})
    lacks = r"is not ours to change and lacks create workflowtaskresults\.argoproj\.io, patch workflowtaskresults\."
    with pytest.raises(ForeignObjectError, match=lacks):
        await ensure_base(api, settings())
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await api.patch(ROLES, "rayclustertest", {"rules": everything})
    done = await ensure_base(api, settings())
    assert "Role rayclustertest is there, made by somebody else" in done
    assert (await api.get(ROLES, "rayclustertest"))["rules"] == everything


async def test_claims_are_waited_for_until_each_is_bound(api: KubeClient) -> None:
    for name in NAMES:
        await make(api, name)
    waiting = asyncio.create_task(wait_for_claims(api, NAMES, 20))
    for name in NAMES:
        await bind(api, name)
    assert await waiting == [f"claim {name} is bound" for name in NAMES]


async def test_a_claim_that_waits_for_its_first_pod_is_as_good_as_bound(api: KubeClient) -> None:
    await make(api, "verl-models")
    words = "waiting for first consumer to be created before binding"
    await say(api, "verl-models", "WaitForFirstConsumer", words, "Normal")
    assert await wait_for_claims(api, ["verl-models"], 20) == ["claim verl-models gets its volume with its first pod"]


async def test_who_may_not_read_events_knows_a_class_that_waits_for_a_pod(
    api: KubeClient, server: KubeApiServer
) -> None:
    late = {"provisioner": "driver.example", "volumeBindingMode": "WaitForFirstConsumer"}
    await api.create(STORAGE_CLASSES, {**STORAGE_CLASSES.head("late"), **late})
    server.faults.append(Fault(method="GET", path="/events", status=403, times=99))
    named = {"storage_class": "late", "size": "1Gi"}
    sections = {"models": "verl-models", "datasets": "verl-dataset", "runs": "verl-runs"}
    done = await ensure_base(api, settings(**{key: {"claim": name, **named} for key, name in sections.items()}))
    assert "claim verl-runs gets its volume with its first pod" in done


async def test_once_a_pod_uses_it_it_has_to_be_bound(api: KubeClient) -> None:
    await make(api, "verl-models", annotations={SELECTED_NODE: "node-1"})
    await say(api, "verl-models", "WaitForFirstConsumer", "waiting for first consumer", "Normal")
    with pytest.raises(WaitTimeoutError, match=r"claim verl-models has no volume after 0 s: claim-pending"):
        await wait_for_claims(api, ["verl-models"], 0)


async def test_a_time_out_says_why(api: KubeClient) -> None:
    await make(api, "verl-models")
    await say(api, "verl-models", "ProvisioningFailed", "driver says: quota of disks exceeded in zone b")
    with pytest.raises(WaitTimeoutError, match="quota of disks exceeded in zone b"):
        await wait_for_claims(api, ["verl-models"], 0)


async def test_a_claim_that_is_not_there_or_goes_is_told(api: KubeClient) -> None:
    await make(api, "verl-models")
    with pytest.raises(StorageMisfitError, match="there is no claim verl-runs"):
        await wait_for_claims(api, ["verl-models", "verl-runs"], 20)
    waiting = asyncio.create_task(wait_for_claims(api, ["verl-models"], 20))
    await api.delete(CLAIMS, "verl-models")
    with pytest.raises(StorageMisfitError, match="there is no claim verl-models"):
        await waiting
