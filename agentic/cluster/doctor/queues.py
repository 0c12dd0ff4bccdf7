"""The queue that a run waits in: without it, or with one that takes nothing, its pods are held back for ever and Kueue
tells nobody but the objects themselves."""

from collections.abc import Iterator

from agentic.cluster.apply import find
from agentic.cluster.client import KubeClient
from agentic.cluster.doctor.facts import Facts
from agentic.cluster.errors import NotFoundError
from agentic.cluster.resources import JsonObject, Resource
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.troubles import Trouble, make_trouble

GROUP = "kueue.x-k8s.io"


async def check_queue(client: KubeClient, facts: Facts) -> list[Trouble]:
    """That the LocalQueue of the settings is there and admits."""
    cluster = facts.cluster
    if cluster.queue is None:
        return []
    try:
        group = await client.read(f"/apis/{GROUP}")
    except NotFoundError:
        where, message = f"LocalQueue ({GROUP})", f"cluster.queue is {cluster.queue}, and the cluster has no Kueue"
        return [make_trouble("kind-missing", where, message, remedy="install Kueue, or leave cluster.queue out")]
    queues = Resource(GROUP, str(group["preferredVersion"]["version"]), "localqueues", "LocalQueue")
    return list(judge_queue(cluster, await find(client, queues, cluster.queue, cluster.namespace)))


def judge_queue(cluster: ClusterSettings, found: JsonObject | None) -> Iterator[Trouble]:
    """Pure."""
    where = f"localqueue {cluster.queue} in {cluster.namespace}"
    if found is None:
        yield make_trouble("queue-missing", where, "it is not there: what waits in it waits for ever")
        return
    conditions = (found.get("status") or {}).get("conditions") or ()
    for one in conditions:
        if (one.get("type"), one.get("status")) == ("Active", "False"):
            yield make_trouble("queue-inactive", where, f"{one.get('reason')}: {one.get('message')}")
