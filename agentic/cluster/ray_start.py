"""A RayCluster on its way to ready, and what is in its way.

Followed are its state and conditions, its pods and their events; the wait ends early, with the trouble's name as soon
as it has lasted, never with a mere time-out. What cannot be read for the moment ends nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from agentic.cluster.api import KubeApi
from agentic.cluster.errors import (
    ApiUnavailableError,
    ForbiddenError,
    OtherRunError,
    RayClusterError,
    RayClusterLostError,
    WaitTimeoutError,
)
from agentic.cluster.labels import RUN_LABEL
from agentic.cluster.patience import Patience, TroubleClock
from agentic.cluster.ray_head import CLUSTER_LABEL, RayHead, head_of
from agentic.cluster.ray_state import Phase, describe, is_taken_up, phase_of
from agentic.cluster.resources import EVENTS, PODS, RAY_CLUSTERS, JsonObject, name_of, uid_of
from agentic.cluster.troubles import Evidence, Trouble, find_troubles, make_trouble
from agentic.cluster.watching import Watcher

OWN_STATE = "ray-cluster-failed"
"""Trouble that repeats what the object's state says; any other says why."""

type Say = Callable[[str], None]


class RayStart:
    """One RayCluster on its way to ready."""

    def __init__(self, api: KubeApi, wanted: JsonObject, say: Say, patience: Patience) -> None:
        self._api = api
        self._name = name_of(wanted)
        self._run_id = wanted["metadata"]["labels"][RUN_LABEL]
        self._say = say
        self._patience = patience
        self._clock = TroubleClock(patience)
        self._heard_at = asyncio.get_running_loop().time()
        self._told = ""

    async def until_ready(self) -> RayHead:
        loop = asyncio.get_running_loop()
        pause = self._patience.look_seconds
        deadline = loop.time() + self._patience.start_seconds
        async with (
            Watcher(self._api, RAY_CLUSTERS, fields=f"metadata.name={self._name}") as clusters,
            Watcher(self._api, PODS, labels=f"{CLUSTER_LABEL}={self._name}") as pods,
        ):
            while True:
                with contextlib.suppress(WaitTimeoutError):
                    ready = await clusters.wait_for(self._name, self._ready, timeout_seconds=pause)
                    head = head_of(ready, pods.objects)
                    if head is not None:
                        return head
                    await asyncio.sleep(pause / 4)  # one watch is behind the other, or the head is on its way out
                cluster = clusters.objects.get(self._name)
                if cluster is not None and phase_of(cluster) is Phase.QUEUED:
                    deadline = loop.time() + self._patience.start_seconds
                    self._tell(f"RayCluster {self._name} waits in its queue")
                    continue
                await self._look(cluster, list(pods.objects.values()), loop.time(), deadline)

    def _ready(self, cluster: JsonObject | None) -> JsonObject | None:
        """Raises what makes waiting pointless."""
        if cluster is None or "deletionTimestamp" in cluster["metadata"]:
            raise RayClusterLostError(f"RayCluster {self._name} was deleted while it started: trying again makes it")
        owner = (cluster["metadata"].get("labels") or {}).get(RUN_LABEL)
        if owner != self._run_id:
            raise OtherRunError(
                f"RayCluster {self._name} was taken over by run {owner}, which began at the same moment: name another "
                "in cluster.head.name"
            )
        phase = phase_of(cluster)
        if phase is Phase.SUSPENDED:
            raise RayClusterError(
                f"RayCluster {self._name} is suspended (spec.suspend) and in no queue that would resume it: "
                f'kubectl patch raycluster {self._name} --type=merge -p \'{{"spec":{{"suspend":false}}}}\''
            )
        return cluster if phase is Phase.READY else None

    async def _look(self, cluster: JsonObject | None, pods: Sequence[JsonObject], now: float, deadline: float) -> None:
        """Say what is in the way; raise it when it has been there for too long."""
        if cluster is None:
            return
        troubles = find_troubles(await self._evidence(cluster, pods)) + self._silence(cluster, now)
        for one in self._clock.fresh(troubles, now):
            self._say(one.line)
        if phase_of(cluster) is Phase.FAILED:
            raise _failed(self._name, cluster, troubles)
        overdue = self._clock.overdue(troubles, now)
        if overdue is not None:
            raise _error_of(overdue)(overdue.line)
        self._tell(describe(cluster, pods))
        if now >= deadline:
            why = "; ".join(one.line for one in troubles) or "no trouble has a name"
            raise RayClusterLostError(
                f"RayCluster {self._name} is not ready after {self._patience.start_seconds:.0f} s and {why}: "
                f"{describe(cluster, pods)}"
            )

    def _silence(self, cluster: JsonObject, now: float) -> list[Trouble]:
        """No event and no state tells of an operator that is not there; it may come back."""
        if is_taken_up(cluster):
            self._heard_at = now
        if now - self._heard_at < self._patience.lasting_seconds:
            return []
        seconds = now - self._heard_at
        where, message = f"raycluster {self._name}", f"KubeRay has not looked at it for {seconds:.0f} s"
        return [make_trouble("controller-silent", where, message, transient=True)]

    async def _evidence(self, cluster: JsonObject, pods: Sequence[JsonObject]) -> Evidence:
        """Events of these very objects: those of an earlier RayCluster of the name are still there for an hour."""
        names = [self._name, *(name_of(pod) for pod in pods)]
        uids = {uid_of(cluster), *(uid_of(pod) for pod in pods)}
        lists = await asyncio.gather(*map(self._events_of, names))
        events = [one for found in lists for one in found if one.get("involvedObject", {}).get("uid") in uids]
        return Evidence(pods=pods, events=events, objects=[{**cluster, "kind": RAY_CLUSTERS.kind}])

    async def _events_of(self, name: str) -> Sequence[JsonObject]:
        """None where they cannot be read: states say most, and the watches go on by themselves."""
        try:
            return (await self._api.list(EVENTS, fields=f"involvedObject.name={name}")).items
        except (ApiUnavailableError, ForbiddenError) as error:
            self._tell(f"events cannot be read for the moment: {error}")
            return ()

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._say(line)


def _error_of(trouble: Trouble) -> type[RayClusterError | RayClusterLostError]:
    return RayClusterLostError if trouble.transient else RayClusterError


def _failed(name: str, cluster: JsonObject, troubles: Sequence[Trouble]) -> RayClusterError | RayClusterLostError:
    """KubeRay gave it up; the next try replaces it unless a trouble that stays says why."""
    causes = [one for one in troubles if one.name != OWN_STATE]
    for one in sorted(causes, key=lambda trouble: trouble.transient):
        return _error_of(one)(f"RayCluster {name} has failed: {one.line}")
    reason = (cluster.get("status") or {}).get("reason") or "KubeRay gives no reason"
    return RayClusterLostError(f"RayCluster {name} has failed: {reason}: trying again makes it anew")
