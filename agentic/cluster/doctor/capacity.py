"""Checks of the nodes: are they well, is there room for each pod of a run, and are the GPUs what the images need."""

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.examining import if_allowed
from agentic.cluster.doctor.facts import Facts
from agentic.cluster.doctor.fitting import judge_room, read_nodes
from agentic.cluster.doctor.gpus import judge_gpus
from agentic.cluster.resources import NODES, Resource
from agentic.cluster.settings import label_map
from agentic.cluster.troubles import Evidence, Trouble, find_troubles

ALL_PODS = Resource("", "v1", "pods", "Pod", is_namespaced=False)
"""Addressed without a namespace: those of all."""


async def check_nodes(client: KubeClient, facts: Facts) -> list[Trouble]:
    nodes = await client.list(NODES)
    return find_troubles(Evidence(objects=[{"kind": NODES.kind, **node} for node in nodes.items]))


async def check_room(client: KubeClient, facts: Facts) -> list[Trouble]:
    nodes = await client.list(NODES)
    pods = await if_allowed(client.list(ALL_PODS))
    known = read_nodes(nodes.items, None if pods is None else pods.items)
    return list(judge_room(facts.pods, known, facts.cluster.gpu_resource))


async def check_gpus(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Of the nodes that the selectors leave to Ray's pods."""
    cluster = facts.cluster
    if not cluster.head.gpus:
        return []
    wanted = label_map((*cluster.node_selector, *cluster.ray_node_selector)).items()
    nodes = [
        node for node in (await client.list(NODES)).items if wanted <= (node["metadata"].get("labels") or {}).items()
    ]
    return list(judge_gpus(nodes, cluster.gpu_resource, facts.gpu_capability, cluster.head.gpus))
