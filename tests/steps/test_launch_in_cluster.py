"""launch-cluster as a step's pod does it: closed in first, made, awaited, and what it made told."""

import asyncio
import json
import os
import sys
from pathlib import Path

from kube_api import KubeApiServer
from kube_pods import PodRuntime

from agentic.cluster.client import KubeClient
from agentic.cluster.credentials import Access, FixedCredentials
from agentic.cluster.resources import NETWORK_POLICIES, PODS, RAY_CLUSTERS, JsonObject, name_of, uid_of

ROOT = Path(__file__).parents[2]
HEAD = "raycluster-verl-head-x"


async def start(server: KubeApiServer, folder: Path) -> asyncio.subprocess.Process:
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "rl"}}
    clusters, users = [{"name": "c", "cluster": {"server": server.address}}], [{"name": "u", "user": {}}]
    config = {"kind": "Config", "clusters": clusters, "users": users, "contexts": [context], "current-context": "c"}
    (folder / "kubeconfig").write_text(json.dumps(config))
    train = {"device": "cpu", "gpus_per_node": 1}
    cluster = {"namespace": "rl", "workspace_path": str(folder), "head": {"gpus": 0}}
    given = {"run_id": "r1", "ray": {"cpus": 2}, "train": train, "cluster": cluster}
    (folder / "inputs.json").write_text(json.dumps(given))
    named = {"KUBECONFIG": str(folder / "kubeconfig"), "AGENTIC_TARGET": "argo", "AGENTIC_WORKSPACE": str(folder)}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steps.launch_cluster", "--inputs", str(folder / "inputs.json")),
        cwd=ROOT,
        env=os.environ | named,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def seen(api: KubeClient) -> JsonObject:
    async with asyncio.timeout(50):
        while not (found := (await api.list(RAY_CLUSTERS)).items):
            await asyncio.sleep(0.05)
    return found[0]


async def play_kuberay(api: KubeClient, cluster: JsonObject) -> None:
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name_of(cluster), "uid": uid_of(cluster)}
    labels = {"ray.io/cluster": name_of(cluster), "ray.io/node-type": "head"}
    await api.create(PODS, {**PODS.head(HEAD, labels=labels, ownerReferences=[owner]), "spec": {"containers": []}})
    await api.patch(PODS, HEAD, {"status": {"phase": "Running", "podIP": "10.0.0.7"}}, subresource="status")
    status = {
        "state": "ready",
        "conditions": [{"type": "HeadPodReady", "status": "True"}],
        "head": {"podIP": "10.0.0.7"},
        "observedGeneration": cluster["metadata"]["generation"],
    }
    await api.patch(RAY_CLUSTERS, name_of(cluster), {"status": status}, subresource="status")


async def test_ray_is_closed_in_before_it_is_there_and_its_address_is_told(tmp_path: Path) -> None:
    """Whoever reaches Ray's ports runs code in it, and steps lie between its launch and its first job."""
    async with KubeApiServer(pods=PodRuntime(starts_pods=False)) as server:
        async with KubeClient(FixedCredentials(Access(server.address)), namespace="rl") as api:
            step = await start(server, tmp_path)
            cluster = await seen(api)
            (policy,) = (await api.list(NETWORK_POLICIES)).items
            assert policy["spec"]["podSelector"]["matchLabels"] == {
                "agentic-rl/run": "r1",
                "agentic-rl/role": "trainer",
            }
            assert len((tmp_path / "runs/r1/ray.token").read_text()) == 64, "before its head would look for it"
            await play_kuberay(api, cluster)
            said, _ = await step.communicate()
        assert step.returncode == 0, said.decode()
        outputs = json.loads(said.decode().splitlines()[-1])
        assert outputs["address"] == "raycluster-verl-head-svc.rl.svc:6379"
        assert outputs["dashboard"] == "http://raycluster-verl-head-svc.rl.svc:8265"
