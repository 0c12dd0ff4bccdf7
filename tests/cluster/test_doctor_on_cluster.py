"""Troubles that the real cluster gets into, named from what its components say; and that a healthy one shows none."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from argo_rig import ArgoRig, until
from stand_in_workflow import plan, stand_in
from trouble_pods import BASE, asking, in_trouble, job, pod, unbound_claim

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.doctor import Facts, PodNeed, Report, Target, examine
from agentic.cluster.doctor.checks import READING
from agentic.cluster.doctor.examining import Check
from agentic.cluster.doctor.probing import check_reach
from agentic.cluster.objects.buildkit import buildkit
from agentic.cluster.objects.rights import pipeline_rules
from agentic.cluster.quantities import quantity
from agentic.cluster.resources import RAY_CLUSTERS, WORKFLOWS, Resource
from agentic.cluster.settings import ClaimSettings, ClusterSettings
from agentic.cluster.troubles import Evidence, find_troubles
from testbed.access import Account, ClusterAccess
from testbed.storage import make_volumes, remove_volumes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 200.0
SMALL = (
    f"cluster.steps_image={BASE}",
    "cluster.head.cpus=0.05",
    "cluster.head.memory=64Mi",
    "cluster.light.cpu=50m",
    "cluster.light.memory=64Mi",
    "cluster.heavy.cpu=50m",
    "cluster.heavy.memory=64Mi",
    *(f'cluster.{section}.storage_class=""' for section in ("models", "datasets", "runs")),
)


def submit(namespace: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "workflows/submit.py", *words, f"cluster.namespace={namespace}"]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=280, check=False)


def look(cluster: ClusterAccess, namespace: str) -> dict[str, set[str]]:
    """What is named at each object of a namespace."""
    pods = cluster.get("pods", f"--namespace={namespace}")["items"]
    events = cluster.get("events", f"--namespace={namespace}")["items"]
    found: dict[str, set[str]] = {}
    for trouble in find_troubles(Evidence(pods=pods, events=events)):
        found.setdefault(trouble.where.split()[1].rstrip(","), set()).add(trouble.name)
    return found


def test_what_the_cluster_says_of_each_trouble_is_named(cluster: ClusterAccess, namespace: str) -> None:
    bodies = in_trouble(cluster.layout.registry)
    wanted = {body["metadata"]["name"]: name.partition(" ")[0] for name, body in bodies.items()}
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=as_list(*bodies.values()))
    seen: dict[str, set[str]] = {}

    def all_named() -> bool:
        seen.update(look(cluster, namespace))
        return all(name in seen.get(where, ()) for where, name in wanted.items())

    try:
        until(all_named, PATIENCE_SECONDS)
    except AssertionError:
        assert {where: seen.get(where, set()) for where in wanted} == {where: {name} for where, name in wanted.items()}


def as_list(*bodies: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(bodies)})


def facts(namespace: str, **more: Any) -> Facts:
    need = PodNeed("a light step", "cluster.light", quantity("50m"), quantity("64Mi"))
    settings = ClusterSettings(namespace=namespace, service_account="default", steps_image=BASE)
    return Facts(**{"cluster": settings, "kinds": (WORKFLOWS, RAY_CLUSTERS), "pods": (need,), **more})


def report_of(known: Facts, kubeconfig: Path, *checks: str) -> Report:
    chosen = [check for check in READING if check.name in checks]

    async def examined() -> Report:
        async with KubeClient(LoadedCredentials(kubeconfig), namespace=known.cluster.namespace) as client:
            return await examine(client, known, chosen or READING)

    return asyncio.run(examined())


def names(report: Report) -> set[str]:
    return {trouble.name for trouble in report.troubles}


def test_the_doctor_finds_nothing_in_a_healthy_cluster(namespace: str) -> None:
    """Nothing of a run is there yet, not even its account: submitting makes it."""
    for _ in range(4):  # The cluster is shared: what others do to its only node shows for a moment.
        ended = submit(namespace, "doctor", "--profile=demo", *SMALL)
        if ended.returncode == 0:
            break
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "nothing is in the way"), ended.stdout
    assert "  ok reach" in ended.stdout
    assert "  ?  model, data set, free disk: not looked at: they lie in the claims" in ended.stdout, "silence is no yes"


def test_the_default_run_is_too_large_for_this_cluster_and_is_told_what_would_fit(namespace: str) -> None:
    ended = submit(namespace, "doctor", "--json")
    assert ended.returncode == 78
    troubles = json.loads(ended.stdout)["troubles"]
    too_large = {one["where"]: one["remedy"] for one in troubles if one["name"] == "larger-than-any-node"}
    assert "0 GPUs would fit" in too_large["the RayCluster's head"]
    assert "storage-class-missing" in {one["name"] for one in troubles}


def test_every_right_that_an_account_lacks_is_named(namespace: str, make_account: Callable[..., Account]) -> None:
    rules = [rule for rule in pipeline_rules() if "jobs" not in rule["resources"]]
    account = make_account(rules)
    report = report_of(facts(namespace, rules=pipeline_rules()), account.kubeconfig)
    (trouble,) = report.troubles
    assert trouble.name == "right-missing"
    assert "create jobs.batch" in trouble.message
    assert "nodes" in report.skipped


def test_an_account_with_the_runs_rights_finds_nothing(namespace: str, make_account: Callable[..., Account]) -> None:
    account = make_account(pipeline_rules())
    chosen = ("API server", "clocks", "rights", "kinds", "controllers", "nodes", "room", "admission", "pods")
    report = report_of(facts(namespace, rules=pipeline_rules()), account.kubeconfig, *chosen)
    assert report.troubles == []


def test_kinds_and_namespaces_that_are_not_there_are_named(cluster: ClusterAccess, namespace: str) -> None:
    old = Resource("ray.io", "v1alpha7", "rayclusters", "RayCluster")
    other = Resource("nothing.example", "v1", "things", "Thing")
    report = report_of(facts(namespace, kinds=(old, other)), cluster.kubeconfig, "kinds")
    assert [trouble.where for trouble in report.troubles] == [
        "RayCluster (ray.io/v1alpha7)",
        "Thing (nothing.example/v1)",
    ]
    assert "serves ray.io as" in report.troubles[0].message
    assert names(report_of(facts(f"{namespace}-not"), cluster.kubeconfig, "API server")) == {"namespace-missing"}


def test_what_the_api_server_would_refuse_is_named_before(cluster: ClusterAccess, namespace: str) -> None:
    head = f"--namespace={namespace}"
    cluster.kubectl("create", "quota", "small", "--hard=requests.memory=1Mi", head)
    assert names(report_of(facts(namespace), cluster.kubeconfig, "admission")) == {"quota-exceeded"}
    cluster.kubectl("delete", "quota", "small", head)
    limits = {"type": "Container", "max": {"memory": "16Mi"}}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": namespace}}
    cluster.apply({**body, "spec": {"limits": [limits]}})
    until(lambda: names(report_of(facts(namespace), cluster.kubeconfig, "admission")) == {"limit-range"})
    cluster.kubectl("delete", "limitrange", "l", head)
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    until(lambda: names(report_of(facts(namespace), cluster.kubeconfig, "admission")) == {"admission-refused"})


def test_a_quota_shows_at_the_job_whose_pods_it_keeps_out(cluster: ClusterAccess, namespace: str) -> None:
    cluster.kubectl("create", "quota", "small", "--hard=pods=0", f"--namespace={namespace}")
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=as_list(job("build")))
    until(lambda: look(cluster, namespace).get("build") == {"quota-exceeded"})


def test_claims_without_a_class_that_exists_are_named(cluster: ClusterAccess, namespace: str) -> None:
    claims = [unbound_claim("verl-models"), unbound_claim("verl-dataset", "nothing")]
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=as_list(*claims))

    def found() -> bool:
        report = report_of(facts(namespace), cluster.kubeconfig, "volumes")
        places = {trouble.where for trouble in report.troubles if trouble.name == "storage-class-missing"}
        return {"persistentvolumeclaim verl-models", "persistentvolumeclaim verl-dataset"} <= places

    until(found)


def test_pods_of_ours_that_do_not_run_are_named_by_the_doctor(cluster: ClusterAccess, namespace: str) -> None:
    bodies = (pod("x", container=asking(cpu="500")), pod("fine"))
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=as_list(*bodies))
    until(lambda: names(report_of(facts(namespace), cluster.kubeconfig, "pods")) == {"no-room-for-cpu"})


@pytest.fixture
def listening(cluster: ClusterAccess) -> Iterator[str]:
    """`host:port` that pods reach."""
    with socket.create_server((cluster.host, 0)) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        yield f"{cluster.host}:{server.getsockname()[1]}"


def _accept(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


def reach(cluster: ClusterAccess, namespace: str, *addresses: str) -> list[tuple[str, str]]:
    targets = tuple(Target("builder-unreachable", "BuildKit", "tcp", address) for address in addresses)

    async def examined() -> Report:
        async with KubeClient(LoadedCredentials(cluster.kubeconfig), namespace=namespace) as client:
            return await examine(client, facts(namespace, targets=targets), [Check("reach", check_reach)])

    return [(trouble.name, trouble.message) for trouble in asyncio.run(examined()).troubles]


def test_a_pod_tries_what_the_run_has_to_reach(cluster: ClusterAccess, namespace: str, listening: str) -> None:
    closed = f"{cluster.host}:9"
    ((name, message),) = reach(cluster, namespace, listening, closed)
    assert name == "builder-unreachable"
    assert message.startswith(f"{closed}: ConnectionRefusedError")
    assert cluster.get("pods", f"--namespace={namespace}")["items"] == []


def test_a_builder_of_the_namespace_that_is_down_is_found_from_a_pod(cluster: ClusterAccess, namespace: str) -> None:
    """As a run has made it, but for pods behind its Service."""
    (service,) = (one for one in buildkit(ClusterSettings(namespace=namespace)) if one["kind"] == "Service")
    cluster.apply(service)

    async def examined() -> Report:
        async with KubeClient(LoadedCredentials(cluster.kubeconfig), namespace=namespace) as client:
            known = facts(namespace, builds_in_namespace=True)
            return await examine(client, known, [Check("reach", check_reach)])

    (trouble,) = asyncio.run(examined()).troubles
    assert (trouble.name, trouble.where) == ("builder-unreachable", "pod -> BuildKit")
    assert trouble.message.startswith("buildkitd:1234: ")


def test_a_policy_that_keeps_pods_in_shows_as_an_address_that_is_not_reached(
    cluster: ClusterAccess, namespace: str, listening: str
) -> None:
    policy = {"podSelector": {}, "policyTypes": ["Egress"], "egress": []}
    metadata = {"name": "closed", "namespace": namespace}
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata}
    cluster.apply({**head, "spec": policy})
    assert [name for name, _ in until(lambda: reach(cluster, namespace, listening))] == ["builder-unreachable"]


def test_an_image_that_is_missing_shows_when_the_probe_is_started(cluster: ClusterAccess, namespace: str) -> None:
    settings = ClusterSettings(namespace=namespace, steps_image=f"{cluster.layout.registry}/nothing:1")

    async def examined() -> Report:
        async with KubeClient(LoadedCredentials(cluster.kubeconfig), namespace=namespace) as client:
            return await examine(client, Facts(settings), [Check("reach", check_reach)])

    assert [trouble.name for trouble in asyncio.run(examined()).troubles] == ["image-missing"]


def test_explain_names_why_a_workflow_failed(argo: ArgoRig, tmp_path: Path) -> None:
    plan(tmp_path, "train", "oom", "oom", "oom", "oom", "oom")
    document = stand_in(tmp_path, argo.namespace, "sick", start_from="train", arguments=("cluster.retries=1",))
    argo.create(document)
    argo.until_over(document["metadata"]["name"])
    ended = submit(argo.namespace, "explain", "sick", "--target=argo")
    assert ended.stdout.startswith("out-of-memory: "), ended.stdout + ended.stderr
    assert ended.returncode == 75


def test_explain_reads_the_volume_when_the_pods_are_gone(argo: ArgoRig, tmp_path: Path, cluster: ClusterAccess) -> None:
    folder = make_volumes(cluster, argo.namespace, [ClaimSettings(claim="verl-runs", size="1Gi")], tmp_path)[
        "verl-runs"
    ]
    claims = as_list(unbound_claim("verl-runs", ""))
    cluster.kubectl("create", f"--namespace={argo.namespace}", "-f", "-", stdin=claims)
    for path, text in (
        ("logs/train.log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB\n"),
        (
            "rollouts/train.jsonl",
            "".join(f'{{"step": {n % 2}, "outcome": "failed", "reward": 0.0}}\n' for n in range(32)),
        ),
    ):
        (folder / "runs/gone" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "runs/gone" / path).write_text(text)
    plan(folder, "train", "exit 78")
    document = stand_in(folder, argo.namespace, "gone", start_from="train", arguments=(f"cluster.steps_image={BASE}",))
    argo.create(document)
    argo.until_over(document["metadata"]["name"])
    cluster.kubectl("delete", "pods", "--all", f"--namespace={argo.namespace}", "--wait=true")
    ended = submit(argo.namespace, "explain", "gone", "--target=argo", "--json")
    remove_volumes(cluster, argo.namespace)
    found = [trouble["name"] for trouble in json.loads(ended.stdout)["troubles"]]
    assert found == ["gpu-memory", "rewards-all-zero"], ended.stdout + ended.stderr


def test_explain_repeats_a_steps_own_line_when_it_has_no_other_name(argo: ArgoRig, tmp_path: Path) -> None:
    plan(tmp_path, "train", "exit 78")
    document = stand_in(tmp_path, argo.namespace, "refused", start_from="train")
    argo.create(document)
    argo.until_over(document["metadata"]["name"])
    ended = submit(argo.namespace, "explain", "refused", "--target=argo")
    assert ended.stdout.startswith("step-failed: "), ended.stdout + ended.stderr
    assert "train was told to leave with exit 78" in ended.stdout
    assert ended.returncode == 78


def test_explain_finds_nothing_in_a_run_that_went_well(argo: ArgoRig, tmp_path: Path) -> None:
    plan(tmp_path, "train", "exit 75")
    document = stand_in(tmp_path, argo.namespace, "well", start_from="train")
    argo.create(document)
    argo.until_over(document["metadata"]["name"])
    ended = submit(argo.namespace, "explain", "well", "--target=argo")
    assert (ended.returncode, ended.stdout) == (0, "run well shows no trouble that has a name\n"), ended.stderr
