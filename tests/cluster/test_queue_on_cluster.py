"""Kueue's queue as the API server knows it: its own schemas, without its controller."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import LoadedCredentials
from agentic.cluster.doctor import Facts
from agentic.cluster.doctor.queues import check_queue
from agentic.cluster.settings import ClusterSettings
from steps.ray_head import manifest_of
from testbed.access import ClusterAccess
from workflows.settings import load_settings

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "tests" / "crds"
QUEUE = "runs"


@pytest.fixture(scope="module")
def kueue_crds(cluster: ClusterAccess) -> None:
    cluster.install_crds(CRDS.glob("*.kueue.x-k8s.io.yaml"))


def in_the_docs() -> list[dict[str, Any]]:
    """The example of docs/pipeline.md."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "pipeline.md").read_text(), re.DOTALL)
    return list(yaml.safe_load_all(block))


def found(cluster: ClusterAccess, namespace: str, queue: str | None = QUEUE) -> list[tuple[str, str]]:
    settings = ClusterSettings(namespace=namespace, queue=queue)

    async def look() -> list[tuple[str, str]]:
        async with KubeClient(LoadedCredentials(cluster.kubeconfig), namespace=namespace) as client:
            return [(one.name, one.message) for one in await check_queue(client, Facts(settings))]

    return asyncio.run(look())


@pytest.mark.usefixtures("kueue_crds")
def test_a_queue_that_is_missing_or_admits_nothing_is_named(cluster: ClusterAccess, namespace: str) -> None:
    assert [name for name, _ in found(cluster, namespace)] == ["queue-missing"]
    assert found(cluster, namespace, None) == []
    flavor, cluster_queue, local_queue = in_the_docs()
    assert local_queue["metadata"]["name"] == QUEUE
    try:
        cluster.apply(flavor, cluster_queue, {**local_queue, "metadata": {"name": QUEUE, "namespace": namespace}})
        assert found(cluster, namespace) == []
        inactive = {
            "type": "Active",
            "status": "False",
            "reason": "ClusterQueueIsInactive",
            "message": "Can't submit new workloads to clusterQueue",
            "lastTransitionTime": "2026-01-01T10:00:00Z",
        }
        where = ("localqueue", QUEUE, f"--namespace={namespace}", "--subresource=status", "--type=merge")
        cluster.kubectl("patch", *where, "-p", json.dumps({"status": {"conditions": [inactive]}}))
        said = "ClusterQueueIsInactive: Can't submit new workloads to clusterQueue"
        assert found(cluster, namespace) == [("queue-inactive", said)]
    finally:
        cluster.kubectl("delete", "clusterqueue,resourceflavor", "--all", "--wait=false")


def test_the_example_of_the_docs_has_room_for_the_default_run(cluster: ClusterAccess, namespace: str) -> None:
    """And the API server takes the RayCluster with the queue's label."""
    settings = load_settings("swe-qwen2.5-7b", [f"cluster.queue={QUEUE}", f"cluster.namespace={namespace}"], {})
    manifest = manifest_of(settings.cluster, settings.ray, settings.train, settings.rollout, "r")
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == QUEUE
    cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(manifest))
    (group,) = in_the_docs()[1]["spec"]["resourceGroups"]
    quota = {one["name"]: one["nominalQuota"] for one in group["flavors"][0]["resources"]}
    head = settings.cluster.head
    assert (quota["nvidia.com/gpu"], quota["memory"]) == (head.gpus, "256Gi")
    assert quota["cpu"] >= head.cpus + float(settings.cluster.heavy.cpu)
    assert (head.memory, settings.cluster.heavy.memory) == ("200Gi", "32Gi")
