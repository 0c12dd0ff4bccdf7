"""The pipeline's objects on the real API server: accepted in full, with rights that suffice and end there, made, closed
to strangers, and swept."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentic.cluster.access import lacking, missing_rights
from agentic.cluster.apply import apply
from agentic.cluster.base import ensure_base
from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.errors import ForbiddenError, ForeignObjectError, StorageMisfitError
from agentic.cluster.labels import labels_of_run, selector_of_run, shared_labels
from agentic.cluster.objects.buildkit import buildkit
from agentic.cluster.objects.policies import ray_policy
from agentic.cluster.objects.rights import MoreRights, pipeline_rules, rights
from agentic.cluster.resources import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    PODS,
    RAY_CLUSTERS,
    ROLES,
    JsonObject,
    name_of,
    resource_of,
)
from agentic.cluster.settings import BuildKitSettings, ClusterSettings
from agentic.cluster.sweep import left, sweep
from testbed import pki
from testbed.access import Account, ClusterAccess
from testbed.storage import make_volumes, remove_volumes
from testbed.tools import Toolbox
from workflows.objects import objects, sandbox_rights
from workflows.settings import load_settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

BASE = "agentic/base:local"
PATIENCE_SECONDS = 120.0
"""For what the cluster does beside other work."""

VARIANTS = {
    "default": [],
    "several-nodes": ["cluster.workers.replicas=3", "train.nodes=4", "cluster.queue=gpus"],
    "rootless-builder": [
        "cluster.buildkit.rootless=true",
        "cluster.buildkit.image=moby/buildkit:v0.32.2-rootless",
        "cluster.buildkit.server_secret=buildkit-daemon-certs",
        "images.buildkit_tls_secret=buildkit-client-certs",
        "cluster.image_pull_secret=acr-registry",
    ],
    "disks-and-folders": [
        "cluster.models.storage=block",
        "cluster.models.storage_class=disk",
        'cluster.node_selector=["kubernetes.io/hostname=gpu-1"]',
        'cluster.ray_tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]',
        'cluster.mounts=[{"host_path": "/opt/env", "mount_path": "/opt/env"}]',
        "sandbox.provider=pod",
        "sandbox.proxy_port=8400",
    ],
}

SANDBOXES = {
    "pod": ["sandbox.provider=pod"],
    "kruise": ["sandbox.provider=kruise"],
    "kruise-of-older-guides": ["sandbox.provider=kruise", "sandbox.api_group=apps.kruise.io"],
    "agent-sandbox": ["sandbox.provider=agent-sandbox"],
}

REFUSED = [
    ("", "secrets", ["get", "list", "watch", "create", "delete"]),
    ("", "nodes", ["get", "list"]),
    ("", "namespaces", ["get", "list", "create"]),
    ("", "serviceaccounts", ["get", "create"]),
    ("", "serviceaccounts/token", ["create"]),
    ("", "persistentvolumeclaims", ["create", "delete"]),
    ("rbac.authorization.k8s.io", "roles", ["get", "create", "patch", "bind", "escalate"]),
    ("rbac.authorization.k8s.io", "rolebindings", ["create", "patch"]),
    ("argoproj.io", "workflows", ["create", "patch", "delete"]),
    ("apps", "deployments", ["list", "delete"]),
    ("storage.k8s.io", "storageclasses", ["list"]),
]


@pytest_asyncio.fixture
async def admin(cluster: ClusterAccess, namespace: str) -> AsyncIterator[KubeClient]:
    async with KubeClient(LoadedCredentials(cluster.kubeconfig), namespace=namespace) as client:
        yield client


def made_of(namespace: str, *arguments: str) -> Iterator[JsonObject]:
    settings = load_settings("swe-qwen2.5-7b", [f"cluster.namespace={namespace}", *arguments], {})
    for _, bodies in objects(settings, "r1"):
        yield from bodies


@pytest.mark.parametrize("variant", VARIANTS)
async def test_the_api_server_accepts_every_object_with_unknown_fields_refused(
    admin: KubeClient, namespace: str, variant: str
) -> None:
    bodies = list(made_of(namespace, *VARIANTS[variant]))
    assert len(bodies) >= 8
    for body in bodies:
        kept = await admin.apply(resource_of(body), body, dry_run=True)
        assert contains(kept, json.loads(json.dumps(body))), f"{body['kind']} lost a field"
    assert not (await admin.list(RAY_CLUSTERS)).items


def contains(kept: Any, given: Any) -> bool:
    """Whether what was given is all there; the server adds defaults, and writes quantities in its own way."""
    if isinstance(given, dict):
        return isinstance(kept, dict) and all(name in kept and contains(kept[name], given[name]) for name in given)
    if isinstance(given, list):
        return len(kept) == len(given) and all(map(contains, kept, given))
    return type(kept) is type(given)


async def act_as(cluster: ClusterAccess, namespace: str, account: str, folder: Path) -> KubeClient:
    token = cluster.kubectl("create", "token", account, f"--namespace={namespace}").strip()
    pki.write_kubeconfig(cluster.layout, folder / "kubeconfig", token, namespace)
    return KubeClient(LoadedCredentials(folder / "kubeconfig"), namespace=namespace)


@pytest.mark.parametrize("provider", SANDBOXES)
async def test_the_account_may_do_what_a_run_needs_and_nothing_else(
    cluster: ClusterAccess, admin: KubeClient, namespace: str, provider: str, tmp_path: Path
) -> None:
    arguments = [f"cluster.namespace={namespace}", *SANDBOXES[provider]]
    settings = load_settings("swe-qwen2.5-7b", arguments, {})
    more = sandbox_rights(settings)
    for body in rights(settings.cluster, more):
        await apply(admin, body)
    needed = [*pipeline_rules(), *(rule for one in more for rule in one.rules)]
    refused = [{"apiGroups": [group], "resources": [name], "verbs": verbs} for group, name, verbs in REFUSED]
    if provider != "pod":
        refused.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]})
    async with await act_as(cluster, namespace, "rayclustertest", tmp_path) as account:
        assert await missing_rights(account, needed) == []
        assert sorted(await missing_rights(account, refused)) == lacking(refused, [])
        elsewhere = await missing_rights(account, needed, namespace="default")
        assert sorted(set(elsewhere)) == lacking(needed, []), "nothing of it holds in another namespace"


async def test_two_runs_with_other_sandboxes_take_no_right_from_each_other(
    cluster: ClusterAccess, admin: KubeClient, namespace: str, tmp_path: Path
) -> None:
    settings = ClusterSettings(namespace=namespace)
    kinds = [
        MoreRights(name, [{"apiGroups": ["x.example"], "resources": [name], "verbs": ["get"]}]) for name in ("as", "bs")
    ]
    for kind in kinds:
        for body in rights(settings, [kind]):
            await apply(admin, body)
    async with await act_as(cluster, namespace, "rayclustertest", tmp_path) as account:
        assert await missing_rights(account, [*kinds[0].rules, *kinds[1].rules, *pipeline_rules()]) == []


@pytest.fixture
def volumes(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[ClusterSettings]:
    """Settings whose claims find volumes that an administrator made."""
    claims = {
        section: {"claim": name, "size": "1Gi", "storage_class": ""}
        for section, name in (("models", "verl-models"), ("datasets", "verl-dataset"), ("runs", "verl-runs"))
    }
    settings = ClusterSettings.model_validate(
        {"namespace": namespace, "bound_timeout_seconds": PATIENCE_SECONDS, **claims}
    )
    make_volumes(cluster, namespace, (settings.models, settings.datasets, settings.runs), tmp_path / "volumes")
    yield settings
    remove_volumes(cluster, namespace)


async def test_claims_are_made_and_bound_and_found_the_second_time(admin: KubeClient, volumes: ClusterSettings) -> None:
    done = await ensure_base(admin, volumes)
    assert "claim verl-models is made (1Gi, ReadWriteMany)" in done
    assert "claim verl-models is bound" in done
    phases = {name_of(body): body["status"]["phase"] for body in (await admin.list(CLAIMS)).items}
    assert phases == {"verl-models": "Bound", "verl-dataset": "Bound", "verl-runs": "Bound"}
    again = await ensure_base(admin, volumes)
    assert "claim verl-models is there (1Gi, ReadWriteMany)" in again


async def test_who_may_not_give_rights_is_told_what_an_admin_has_to_do_and_goes_on_with_it(
    admin: KubeClient, volumes: ClusterSettings, make_account: Callable[..., Account]
) -> None:
    """Roles may be made by this account, but not with rights that it lacks itself."""
    every = ["get", "list", "watch", "create", "patch"]
    account = make_account(
        [
            {"apiGroups": [""], "resources": ["persistentvolumeclaims", "serviceaccounts", "events"], "verbs": every},
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": every},
        ]
    )
    async with KubeClient(LoadedCredentials(account.kubeconfig), namespace=volumes.namespace) as submitter:
        refused = r"attempting to grant RBAC permissions.*there is no Role rayclustertest: have an admin apply"
        with pytest.raises(ForbiddenError, match=refused):
            await ensure_base(submitter, volumes)
        for body in rights(volumes):
            await apply(admin, body)
        assert "Role rayclustertest is applied" in await ensure_base(submitter, volumes), "nothing differs"
        more = {"apiGroups": [""], "resources": ["endpoints"], "verbs": ["get"]}
        await admin.patch(ROLES, "rayclustertest", {"rules": [*pipeline_rules(), more]})
        done = await ensure_base(submitter, volumes)
        assert "Role rayclustertest is there, and not ours to change" in done
        await admin.patch(ROLES, "rayclustertest", {"rules": pipeline_rules()[1:]})
        with pytest.raises(ForeignObjectError, match=r"lacks create workflowtaskresults\.argoproj\.io"):
            await ensure_base(submitter, volumes)


@pytest.fixture
def late_class(cluster: ClusterAccess, namespace: str) -> Iterator[str]:
    """A StorageClass that waits for a pod, and whose driver is nowhere."""
    name = f"late-{namespace}"
    cluster.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "driver.example/none",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    yield name
    cluster.kubectl("delete", "storageclass", name)


def with_class(namespace: str, storage_class: str, seconds: float = PATIENCE_SECONDS) -> ClusterSettings:
    sections = (("models", "verl-models"), ("datasets", "verl-dataset"), ("runs", "verl-runs"))
    claims = {key: {"claim": name, "size": "1Gi", "storage_class": storage_class} for key, name in sections}
    return ClusterSettings.model_validate({"namespace": namespace, "bound_timeout_seconds": seconds, **claims})


async def test_a_class_that_waits_for_a_pod_keeps_nobody_waiting(
    admin: KubeClient, namespace: str, late_class: str
) -> None:
    done = await ensure_base(admin, with_class(namespace, late_class))
    assert "claim verl-runs gets its volume with its first pod" in done


async def test_a_class_that_is_nowhere_is_refused_before_anything_is_made(admin: KubeClient, namespace: str) -> None:
    with pytest.raises(StorageMisfitError, match=r"cluster\.models\.storage_class is nowhere but there is none"):
        await ensure_base(admin, with_class(namespace, "nowhere"))
    assert not (await admin.list(CLAIMS)).items


def pod(name: str, labels: dict[str, str], *command: str) -> JsonObject:
    container = {
        "name": "main",
        "image": BASE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command) or ["sleep", "600"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    return {**PODS.head(name, labels=labels), "spec": spec}


async def until[T](ask: Any, wanted: T, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := await ask()) != wanted:
        assert time.monotonic() < deadline, f"{what}: {found} instead of {wanted}"
        await asyncio.sleep(0.5)


class Callers:
    """Pods that try to reach another one."""

    def __init__(self, cluster: ClusterAccess, namespace: str, admin: KubeClient) -> None:
        self._cluster, self._namespace, self._admin = cluster, namespace, admin

    async def run(self, body: JsonObject) -> str:
        """Its address, once it is ready."""
        await self._admin.create(PODS, body)
        name = name_of(body)
        where = f"--namespace={self._namespace}"
        await asyncio.to_thread(
            self._cluster.kubectl, "wait", where, "--for=condition=Ready", f"pod/{name}", "--timeout=120s"
        )
        return str((await self._admin.get(PODS, name))["status"]["podIP"])

    async def reaches(self, caller: str, address: str, *ports: int) -> list[bool]:
        code = (
            "import socket, sys\nfor port in sys.argv[2:]:\n try:\n"
            "  socket.create_connection((sys.argv[1], int(port)), 3).close(); print(True)\n"
            " except OSError: print(False)"
        )
        into = ("exec", f"--namespace={self._namespace}", caller, "--", "python3", "-c", code, address)
        said = await asyncio.to_thread(self._cluster.kubectl, *into, *map(str, ports))
        return [word == "True" for word in said.split()]


SERVES = "import socketserver, sys, threading\nfor port in sys.argv[1:]:\n" + (
    " server = socketserver.ThreadingTCPServer(('', int(port)), socketserver.BaseRequestHandler)\n"
    " threading.Thread(target=server.serve_forever).start()"
)


async def test_rays_pods_are_reached_by_their_run_and_by_sandboxes_at_the_proxys_port(
    cluster: ClusterAccess, admin: KubeClient, namespace: str
) -> None:
    callers = Callers(cluster, namespace, admin)
    await apply(admin, ray_policy(ClusterSettings(namespace=namespace), "r1", 8400))
    head = pod("head", labels_of_run("r1", {"agentic-rl/role": "trainer"}), "python3", "-c", SERVES, "8265", "8400")
    address = await callers.run(head)
    await callers.run(pod("step", labels_of_run("r1", {"agentic-rl/step": "train"})))
    await callers.run(pod("box", labels_of_run("r1", {"agentic-rl/role": "sandbox"})))
    await callers.run(pod("other-run", labels_of_run("r2", {"agentic-rl/step": "train"})))
    for name, wanted in (("step", [True, True]), ("box", [False, True]), ("other-run", [False, False])):
        await until(lambda name=name: callers.reaches(name, address, 8265, 8400), wanted, name)


async def make_account(admin: KubeClient, namespace: str) -> None:
    """Without the account that they name, no pods are admitted."""
    for body in rights(ClusterSettings(namespace=namespace)):
        await apply(admin, body)


def small_ray(namespace: str, run_id: str, name: str) -> JsonObject:
    """A RayCluster whose image is nowhere: KubeRay makes its pods and its Service, and they stay pending."""
    arguments = [
        *(f"cluster.namespace={namespace}", f"cluster.head.name={name}", "cluster.trainer_image=agentic/none:1"),
        *("cluster.workers.replicas=1", "train.nodes=2", "cluster.head.cpus=1", "cluster.head.memory=64Mi"),
        *("cluster.workers.cpus=1", "cluster.workers.memory=64Mi", "cluster.workers.gpus=0"),
        *("cluster.network_policies=false", "images.buildkit_address=tcp://none:1"),
    ]
    settings = load_settings("demo", arguments, {})
    (ray,) = (body for _, bodies in objects(settings, run_id) for body in bodies if body["kind"] == "RayCluster")
    return ray


async def test_what_a_run_left_goes_and_what_others_have_stays(
    cluster: ClusterAccess, admin: KubeClient, namespace: str
) -> None:
    await make_account(admin, namespace)
    for run in ("r1", "r2"):
        await apply(admin, small_ray(namespace, run, f"ray-{run}"))
        job_pod = {"containers": pod("x", {})["spec"]["containers"], "restartPolicy": "Never"}
        template = {"metadata": {"labels": labels_of_run(run)}, "spec": {**job_pod, "terminationGracePeriodSeconds": 0}}
        await admin.create(
            JOBS, {**JOBS.head(f"build-{run}", labels=labels_of_run(run)), "spec": {"template": template}}
        )
        await apply(admin, ray_policy(ClusterSettings(namespace=namespace), run))
    await admin.create(CONFIG_MAPS, CONFIG_MAPS.head("shared", labels=shared_labels()))

    async def pods() -> int:
        return len((await admin.list(PODS, labels=selector_of_run("r1"))).items)

    await until(pods, 3, "pods of head, worker and Job")
    both = await asyncio.gather(sweep(admin, namespace, "r1"), sweep(admin, namespace, "r1"))
    assert {"RayCluster ray-r1", "Job build-r1", "NetworkPolicy ray-r1"} <= {*both[0], *both[1]}
    assert await left(admin, namespace, "r1", timeout_seconds=PATIENCE_SECONDS) == []
    assert await sweep(admin, namespace, "r1") == []
    kinds = {line.split()[0] for line in await left(admin, namespace, "r2")}
    assert {"RayCluster", "Job", "Pod", "NetworkPolicy"} <= kinds
    assert name_of(await admin.get(CONFIG_MAPS, "shared")) == "shared"


async def test_kuberay_takes_the_ray_cluster_and_makes_what_people_look_for(
    cluster: ClusterAccess, admin: KubeClient, namespace: str
) -> None:
    await make_account(admin, namespace)
    await apply(admin, small_ray(namespace, "r1", "raycluster-verl"))
    where = f"--namespace={namespace}"
    await asyncio.to_thread(
        cluster.kubectl, "wait", where, "--for=create", "service/raycluster-verl-head-svc", "--timeout=120s"
    )
    service = await asyncio.to_thread(cluster.get, "service", "raycluster-verl-head-svc", where)
    assert {port["port"] for port in service["spec"]["ports"]} >= {6379, 8265, 10001}

    async def heads() -> int:
        return len((await admin.list(PODS, labels="ray.io/node-type=head")).items)

    await until(heads, 1, "head pods")
    (head,) = (await admin.list(PODS, labels="ray.io/node-type=head")).items
    assert labels_of_run("r1", {"agentic-rl/role": "trainer"}).items() <= head["metadata"]["labels"].items()
    events = await asyncio.to_thread(cluster.get, "events", where, "--field-selector=involvedObject.kind=RayCluster")
    assert [event["message"] for event in events["items"] if "nvalid" in event["reason"]] == []


@pytest.mark.parametrize("broken", [False, True])
def test_buildkitd_reads_its_configuration(cluster: ClusterAccess, tmp_path: Path, broken: bool) -> None:
    """Without a worker it ends by itself, but not before it has read its configuration."""
    chosen = BuildKitSettings(mirrors=("mirror.example",), cache_gib=10)
    config = next(
        body["data"]["buildkitd.toml"]
        for body in buildkit(ClusterSettings(buildkit=chosen), plain_http=("10.0.0.5:5000",))
        if body["kind"] == "ConfigMap"
    )
    (tmp_path / "buildkitd.toml").write_text(config.replace("8GB", "8 elephants") if broken else config)
    words = [str(Toolbox(cluster.layout).path("buildkitd")), f"--config={tmp_path}/buildkitd.toml"]
    words += [f"--root={tmp_path}/root", f"--addr=unix://{tmp_path}/socket"]
    words += ["--oci-worker=false", "--containerd-worker=false"]
    said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stderr
    assert ("no worker found" in said) is not broken, said
    assert ("invalid disk space" in said) is broken, said
