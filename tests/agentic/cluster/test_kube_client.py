"""The client against the API server double: what it asks, what it retries, what it refuses in one line."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kube_api import Fault, KubeApiServer
from kube_store import Refusal

from agentic.cluster.client import FIELD_MANAGER, KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.errors import (
    AdmissionRefusedError,
    AlreadyExistsError,
    ApiUnavailableError,
    ConflictError,
    CredentialsError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    QuotaExceededError,
    error_of,
)
from agentic.cluster.resources import CONFIG_MAPS, NODES, PODS, ROLES, Resource
from agentic.cluster.settings import KubeClientSettings
from agentic.cluster.transport import Pace
from agentic.errors import PermanentError, TransientError

CLAIMS = Resource("agents.kruise.io", "v1alpha1", "sandboxclaims", "SandboxClaim")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubeApiServer]:
    async with KubeApiServer() as server:
        server.pods.starts_pods = False
        yield server


@pytest_asyncio.fixture
async def api(server: KubeApiServer) -> AsyncIterator[KubeClient]:
    settings = KubeClientSettings(retry_seconds=2.0, page_size=7, request_timeout_seconds=1.0)
    async with KubeClient(FixedCredentials(Access(server.address)), settings, namespace="rl") as api:
        yield api


def config(name: str, **labels: str) -> dict[str, Any]:
    return {**CONFIG_MAPS.head(name, labels=labels), "data": {"a": "1"}}


def test_addresses_are_those_of_the_api() -> None:
    assert PODS.path("rl", "p", "exec") == "/api/v1/namespaces/rl/pods/p/exec"
    assert NODES.path("rl", "n") == "/api/v1/nodes/n"
    assert CLAIMS.path("rl") == "/apis/agents.kruise.io/v1alpha1/namespaces/rl/sandboxclaims"
    assert (CLAIMS.name, ROLES.api_version) == ("sandboxclaims.agents.kruise.io", "rbac.authorization.k8s.io/v1")


async def test_an_object_is_made_read_changed_and_removed(api: KubeClient) -> None:
    made = await api.create(CONFIG_MAPS, config("c"))
    assert (await api.get(CONFIG_MAPS, "c"))["metadata"]["uid"] == made["metadata"]["uid"]
    assert (await api.patch(CONFIG_MAPS, "c", {"data": {"b": "2"}}))["data"] == {"a": "1", "b": "2"}
    tested = [{"op": "test", "path": "/data/b", "value": "3"}, {"op": "remove", "path": "/data/b"}]
    with pytest.raises(InvalidObjectError, match="patch configmaps c in rl"):
        await api.patch(CONFIG_MAPS, "c", tested, kind="json")
    assert [await api.delete(CONFIG_MAPS, "c"), await api.delete(CONFIG_MAPS, "c")] == [True, False]
    with pytest.raises(NotFoundError, match="get configmaps c in rl"):
        await api.get(CONFIG_MAPS, "c")


async def test_applying_twice_is_applying_once(api: KubeClient, server: KubeApiServer) -> None:
    first = await api.apply(CLAIMS, {**CLAIMS.head("c"), "spec": {"replicas": 1}})
    again = await api.apply(CLAIMS, {**CLAIMS.head("c"), "spec": {"replicas": 1}})
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    assert (await api.patch_scale(CLAIMS, "c", 5))["spec"]["replicas"] == 5
    assert any(request.endswith("sandboxclaims/c/scale") for request in server.requests)


async def test_a_list_is_all_pages_of_what_the_selector_picks(api: KubeClient) -> None:
    await asyncio.gather(*(api.create(CONFIG_MAPS, config(f"c{n:02}", odd=str(n % 2))) for n in range(31)))
    found = await api.list(CONFIG_MAPS, labels="odd=1")
    assert [body["metadata"]["name"] for body in found.items] == [f"c{n:02}" for n in range(1, 31, 2)]
    assert len((await api.list(CONFIG_MAPS)).items) == 31
    assert len((await api.list(CONFIG_MAPS, labels="odd in (0,1),odd!=1")).items) == 16
    assert (await api.list(CONFIG_MAPS, namespace="other")).items == ()


async def test_a_list_whose_pages_expire_is_begun_anew(api: KubeClient, server: KubeApiServer) -> None:
    """The snapshot that the first page was a part of is compacted away while a long list is read."""
    for number in range(20):
        await api.create(CONFIG_MAPS, config(f"c-{number}"))
    server.faults.append(Fault(method="GET", path="continue=", status=410, message="The provided continue is too old"))
    names = [body["metadata"]["name"] for body in (await api.list(CONFIG_MAPS)).items]
    assert sorted(names) == sorted(f"c-{number}" for number in range(20))


async def test_preconditions_spare_another_object_of_that_name(api: KubeClient) -> None:
    old = await api.create(CONFIG_MAPS, config("c"))
    await api.delete(CONFIG_MAPS, "c")
    new = await api.create(CONFIG_MAPS, config("c"))
    assert not await api.delete(CONFIG_MAPS, "c", uid=old["metadata"]["uid"])
    with pytest.raises(ConflictError):
        await api.delete(CONFIG_MAPS, "c", resource_version="1")
    assert await api.delete(CONFIG_MAPS, "c", uid=new["metadata"]["uid"])


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, times=2),
        Fault(status=500, times=2),
        Fault(status=503),
        Fault(times=2),
        Fault(delay_seconds=1.5),
    ],
    ids=["429", "500", "503", "broken", "slow"],
)
async def test_what_passes_is_retried(api: KubeClient, server: KubeApiServer, fault: Fault) -> None:
    server.faults.append(fault)
    assert (await api.create(CONFIG_MAPS, config("c")))["metadata"]["name"] == "c"
    assert fault.times == 0


async def test_the_servers_retry_after_is_kept(api: KubeClient, server: KubeApiServer) -> None:
    server.faults.append(Fault(status=429, retry_after_seconds=1))
    started = time.monotonic()
    await api.list(CONFIG_MAPS)
    assert time.monotonic() - started >= 1


async def test_what_does_not_pass_in_time_is_named(api: KubeClient, server: KubeApiServer) -> None:
    server.faults.append(Fault(status=503, times=1000, message="etcd has no leader"))
    with pytest.raises(
        ApiUnavailableError, match="list configmaps in rl: the API server answered 503: etcd has no leader"
    ):
        await api.list(CONFIG_MAPS)


async def test_nobody_at_the_address_is_named() -> None:
    settings = KubeClientSettings(retry_seconds=0.1)
    async with KubeClient(FixedCredentials(Access("http://127.0.0.1:9")), settings) as api:
        with pytest.raises(ApiUnavailableError, match="cannot be reached"):
            await api.get(PODS, "p")


@pytest.mark.parametrize("status", [0, 500])
async def test_a_create_whose_answer_was_lost_is_known_again(
    api: KubeClient, server: KubeApiServer, status: int
) -> None:
    server.faults.append(Fault(method="POST", status=status, after=True))
    made = await api.create(CONFIG_MAPS, config("c"))
    assert len((await api.list(CONFIG_MAPS)).items) == 1
    with pytest.raises(AlreadyExistsError):
        await api.create(CONFIG_MAPS, config("c"))
    assert (await api.get(CONFIG_MAPS, "c"))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_quota_and_admission_are_told_apart(api: KubeClient, server: KubeApiServer) -> None:
    server.store.quotas["configmaps"] = 1
    await api.create(CONFIG_MAPS, config("c"))
    with pytest.raises(QuotaExceededError, match="exceeded quota"):
        await api.create(CONFIG_MAPS, config("d"))

    def refuse(verb: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        raise Refusal(400, "BadRequest", 'admission webhook "policy.example" denied the request: no\nway')

    server.store.admit.append(refuse)
    with pytest.raises(
        AdmissionRefusedError, match=r'create pods p in rl: .* "policy.example" denied the request: no way'
    ):
        await api.create(PODS, PODS.head("p"))


async def test_refused_credentials_are_read_anew_once(server: KubeApiServer) -> None:
    class Rotating:
        reads = 0

        async def access(self, *, is_refused: bool = False) -> Access:
            self.reads += is_refused
            return Access(server.address, f"Bearer {'new' if is_refused else 'old'}")

    server.tokens = {"new"}
    rotating = Rotating()
    async with KubeClient(rotating, KubeClientSettings(retry_seconds=1)) as api:
        await api.list(CONFIG_MAPS)
        assert rotating.reads == 1
        server.tokens = {"other"}
        with pytest.raises(CredentialsError, match="log in again"):
            await api.list(CONFIG_MAPS)
        with pytest.raises(CredentialsError):
            async with api.exec("p", ["true"]):
                pass


@pytest.mark.parametrize(
    ("status", "reason", "said", "kind", "wanted"),
    [
        (
            403,
            "Forbidden",
            'pods is forbidden: User "system:serviceaccount:rl:trainer" cannot create resource "pods/exec" in',
            ForbiddenError,
            "system:serviceaccount:rl:trainer may not create pods/exec: add it to the account's Role",
        ),
        (403, "Forbidden", 'pods "p" is forbidden: exceeded quota: q', QuotaExceededError, "wait until others end"),
        (
            403,
            "Forbidden",
            'pods "p" is forbidden: violates PodSecurity "restricted"',
            AdmissionRefusedError,
            "PodSecurity",
        ),
        (409, "AlreadyExists", "exists", AlreadyExistsError, "exists"),
        (409, "Conflict", "modified", ConflictError, "modified"),
        (422, "Invalid", 'Pod "p" is invalid: spec: Required', InvalidObjectError, "Required"),
        (500, "InternalError", 'failed calling webhook "w": timeout', ApiUnavailableError, "a webhook of the cluster"),
        (504, "Timeout", "", ApiUnavailableError, "504"),
    ],
)
def test_every_refusal_has_a_kind_and_one_line(
    status: int, reason: str, said: str, kind: type[Exception], wanted: str
) -> None:
    error = error_of(status, {"reason": reason, "message": f"{said}\n"}, "create pods p in rl")
    assert type(error) is kind
    assert isinstance(error, PermanentError | TransientError)
    assert "create pods p in rl" in str(error)
    assert wanted in str(error)
    assert "\n" not in str(error)


def test_pace_lets_a_burst_through_and_then_so_many_a_second() -> None:
    now = 0.0
    pace = Pace(10.0, 3, lambda: now)
    assert [round(pace.take(), 3) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]
    now = 10.0
    assert [round(pace.take(), 3) for _ in range(4)] == [0, 0, 0, 0.1]


async def test_requests_carry_who_made_them(api: KubeClient, server: KubeApiServer) -> None:
    await api.create(CONFIG_MAPS, config("c"))
    assert FIELD_MANAGER == "agentic-rl"
    assert server.requests == ["POST /api/v1/namespaces/rl/configmaps"]
