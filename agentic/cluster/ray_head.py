"""The head of a RayCluster that serves, and whether that very one is still there.

    async with HeadWatch(api, head) as watch:
        ...                                 # until watch.loss() says why it is gone

A head that is made anew, or whose container was started again, is another one: what ran on it is lost, although the
name, and perhaps the address, are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agentic.cluster.api import KubeApi
from agentic.cluster.objects.ray_cluster import HEAD_CONTAINER
from agentic.cluster.resources import PODS, JsonObject, name_of, uid_of
from agentic.cluster.troubles import Evidence, find_troubles
from agentic.cluster.watching import Watcher

DASHBOARD_PORT = 8265
CLUSTER_LABEL, NODE_TYPE_LABEL = "ray.io/cluster", "ray.io/node-type"
"""KubeRay's, of its pods."""


@dataclass(frozen=True, slots=True)
class RayHead:
    """One head pod that serves; another one, or the same after a restart, is another head."""

    cluster: str
    pod: str
    pod_uid: str
    ip: str
    restarts: int

    @property
    def dashboard(self) -> str:
        """By the pod's address: needs no name service, and never means a pod that has replaced this one."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"http://{host}:{DASHBOARD_PORT}"


def head_of(cluster: JsonObject, pods: Mapping[str, JsonObject]) -> RayHead | None:
    """The head that a ready RayCluster names, if its pod is known, its own and stays: KubeRay tells of a loss a moment
    late, and knows pods by their labels, so that it may name what an earlier RayCluster of the name has left."""
    head = cluster["status"]["head"]
    for name, pod in pods.items():
        is_head = (pod["metadata"].get("labels") or {}).get(NODE_TYPE_LABEL) == "head"
        if "deletionTimestamp" in pod["metadata"] or not is_owned_by(pod, uid_of(cluster)):
            continue
        if is_head and (pod.get("status") or {}).get("podIP") == head["podIP"]:
            return RayHead(name_of(cluster), name, uid_of(pod), head["podIP"], _restarts(pod))
    return None


def is_owned_by(pod: JsonObject, uid: str) -> bool:
    """Whether the pod belongs to the object of that uid."""
    return any(one.get("uid") == uid for one in pod["metadata"].get("ownerReferences") or ())


def _restarts(pod: JsonObject) -> int:
    """Of Ray's own container: what a mesh puts beside it may restart as it likes."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(one.get("restartCount") or 0) for one in statuses if one.get("name") == HEAD_CONTAINER)


class HeadWatch:
    """Whether one very head is still there. A context."""

    def __init__(self, api: KubeApi, head: RayHead) -> None:
        self.head = head
        self._pods = Watcher(api, PODS, fields=f"metadata.name={head.pod}")

    async def __aenter__(self) -> "HeadWatch":
        await self._pods.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pods.close()

    def loss(self) -> str | None:
        """Why it is gone, by name where its pod says so; None while it lives."""
        return loss_of(self.head, self._pods.objects.get(self.head.pod))


def loss_of(head: RayHead, pod: JsonObject | None) -> str | None:
    """The same for what is known of the head's pod. Pure."""
    what = f"Ray's head (pod {head.pod})"
    if pod is None or uid_of(pod) != head.pod_uid:
        return f"{what} was deleted, and its job with it: trying again resumes"
    status = pod.get("status") or {}
    named = "; ".join(trouble.line for trouble in find_troubles(Evidence(pods=[pod], with_past=True)))
    if status.get("phase") in ("Failed", "Succeeded"):
        return f"{what} has ended: {named or status.get('reason') or status['phase']}"
    if _restarts(pod) > head.restarts:
        return f"{what} was started again, and its job is lost: {named or 'no reason is told'}"
    if "deletionTimestamp" in pod["metadata"]:
        return (
            f"{what} is being deleted: {named or 'by somebody, or because its node is drained'}: trying again resumes"
        )
    return None
