"""What is wrong right now with what is there already: pods of ours that do not get to run."""

from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.facts import Facts
from agentic.cluster.labels import PART, PART_LABEL
from agentic.cluster.resources import EVENTS, PODS, name_of
from agentic.cluster.troubles import Evidence, Trouble, find_troubles

ENDED = ("Succeeded", "Failed")
"""Pods of these phases are a run's past, which `explain` tells of."""


async def check_pods(client: KubeClient, facts: Facts) -> list[Trouble]:
    """Where a run's pods live, its sandboxes included."""
    home = facts.cluster.namespace
    namespaces = dict.fromkeys([home, *(need.namespace or home for need in facts.pods)])
    return [trouble for namespace in namespaces for trouble in await _troubles(client, namespace)]


async def _troubles(client: KubeClient, namespace: str) -> list[Trouble]:
    found = await client.list(PODS, namespace=namespace, labels=f"{PART_LABEL}={PART}")
    pods = [pod for pod in found.items if (pod.get("status") or {}).get("phase") not in ENDED]
    if not pods:
        return []
    names = {name_of(pod) for pod in pods}
    events = await client.list(EVENTS, namespace=namespace, fields=f"involvedObject.kind={PODS.kind}")
    said = [event for event in events.items if event["involvedObject"].get("name") in names]
    return find_troubles(Evidence(pods=pods, events=said))
