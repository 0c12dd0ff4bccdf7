"""Checks of the nodes: are they well, is there room for each pod of a run, and are the GPUs what the images need."""

from collections.abc import Sequence

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.examining import if_allowed
from agentic.cluster.doctor.facts import Facts, PodNeed
from agentic.cluster.doctor.fitting import judge_room, read_nodes
from agentic.cluster.doctor.gpus import judge_gpus
from agentic.cluster.resources import NODES, JsonObject, Resource
from agentic.cluster.settings import label_map
from agentic.cluster.troubles import Evidence, Trouble, find_troubles

ALL_PODS = Resource("", "v1", "pods", "Pod", is_namespaced=False)
"""Addressed without a namespace: those of all."""


async def check_nodes(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Of the nodes that some pod of the run may land on: others' are not in its way."""
    nodes = concerned((await client.list(NODES)).items, facts.pods)
    return find_troubles(Evidence(objects=[{"kind": NODES.kind, **node} for node in nodes]))


def concerned(nodes: Sequence[JsonObject], needs: Sequence[PodNeed]) -> list[JsonObject]:
    """By the labels that pods ask for. Pure."""
    wanted = [need.selector.items() for need in needs] or [{}.items()]
    return [node for node in nodes if any(one <= (node["metadata"].get("labels") or {}).items() for one in wanted)]


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
