"""What a pod's state means for the sandbox that is to run in it, in one line.

Pure: a pod and its events, as the API server sends them, go in, and one of three verdicts comes out. `waiting` may
pass, and the caller decides for how long; `running` takes commands; `lost` is final, and never a command's exit code.
The words looked for are those of kubelet, scheduler, node lifecycle and taint controllers; each has a test that quotes
it. What keeps a container from starting is known to the catalogue of troubles (`agentic.cluster.troubles`) alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from agentic.cluster.errors import one_line
from agentic.cluster.quantities import quantity
from agentic.cluster.resources import JsonObject
from agentic.cluster.troubles.waiting import ABOUT_IMAGES, HOPELESS, kind_of_waiting
from agentic.sandbox.kube.names import CONTAINER


class PodState(Enum):
    """Three kinds of verdict, and how patient to be with a wait."""

    WAITING = "waiting"
    UNPULLABLE = "unpullable"
    """Waiting for an image or a container that keeps failing: worth less patience."""
    RUNNING = "running"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """One look at a pod."""

    state: PodState
    reason: str = ""
    """Why it waits or is lost; empty while it runs."""
    is_permanent: bool = False
    """Whether another pod of the same kind would end the same way."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a sandbox that ran does so no more."""

    reason: str
    is_own_doing: bool = False
    """Whether what ran in it surely went over the sandbox's own limits; what may be its node's shortage is not."""


EVENTS_WORTH_TELLING = frozenset(
    {
        "FailedScheduling",
        "FailedCreatePodSandBox",
        "FailedMount",
        "FailedAttachVolume",
        "Failed",
        "BackOff",
        "NetworkNotReady",
        "FailedCreate",
    }
)
LOST_REASONS = {
    "Evicted": "it was evicted",
    "DeadlineExceeded": "its lease has run out",
    "NodeLost": "its node is lost",
    "NodeAffinity": "its node no longer takes it",
    "NodeShutdown": "its node is shutting down",
    "Terminated": "its node was shut down",
    "Shutdown": "its node was shut down",
    "Preempting": "it was preempted",
    "Preempted": "it was preempted",
    "UnexpectedAdmissionError": "its node refused it",
}
OWN_STORAGE = re.compile(
    r"exceeded its local ephemeral storage limit|storage usage exceeds the total limit of containers"
    r"|Usage of EmptyDir volume .* exceeds the limit"
)
"""How kubelet says that a pod is evicted for its own writing; a node that is short of something says "was low on"."""
DISRUPTIONS = {
    "PreemptionByScheduler": "it was preempted by a pod of higher priority",
    "DeletionByTaintManager": "its node became unreachable or was tainted",
    "EvictionByEvictionAPI": "it was evicted through the API",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ended it",
}


def judge_pod(pod: JsonObject, events: Sequence[JsonObject] = ()) -> PodVerdict:
    """The verdict on a pod. `events` are those of the pod, in any order; they only make a wait's reason plainer."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase in ("Failed", "Succeeded"):
        return PodVerdict(PodState.LOST, _why_ended(pod))
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return PodVerdict(PodState.LOST, _disruption(status) or "it is being deleted")
    if status.get("reason") == "NodeLost" or phase == "Unknown":
        return PodVerdict(PodState.LOST, _with("its node is lost", status.get("message")))
    container = _container(status)
    state = container.get("state", {})
    if "terminated" in state:
        is_final = pod.get("spec", {}).get("restartPolicy", "Never") == "Never"
        return PodVerdict(PodState.LOST if is_final else PodState.UNPULLABLE, _why_terminated(pod, state["terminated"]))
    if "running" in state and container.get("ready", False):
        unreachable = _unreachable(status)
        return PodVerdict(PodState.LOST, unreachable) if unreachable else PodVerdict(PodState.RUNNING)
    return _judge_waiting(status, state.get("waiting", {}), events)


def why_lost(pod: JsonObject | None, container_id: str) -> Loss | None:
    """Why a sandbox that ran in this container runs no more; None while it does. A container that was started again is
    another one: its files and processes are gone."""
    if pod is None:
        return Loss("its pod was deleted")
    verdict = judge_pod(pod)
    container = _container(pod.get("status", {}))
    ended = container.get("state", {}).get("terminated")
    if verdict.state is PodState.LOST or ended is not None:
        return Loss(verdict.reason, _is_own_doing(pod, ended))
    if container_id and container_id_of(pod) != container_id:
        last = container.get("lastState", {}).get("terminated")
        reason = f"its container was started again{f': {_why_terminated(pod, last)}' if last else ''}"
        return Loss(reason, _is_own_doing(pod, last))
    return None


def _is_own_doing(pod: JsonObject, ended: JsonObject | None) -> bool:
    """Only what surely is: a pod over its own disk, or a container killed for memory that was all set aside for it.

    A runtime writes OOMKilled for every kill in the container's cgroup: also when the node is out of memory as a whole,
    and also when one process was killed long before the pod was ended from outside.
    """
    status = pod.get("status", {})
    if pod.get("metadata", {}).get("deletionTimestamp") or _disruption(status):
        return False
    reason = status.get("reason", "")
    if reason == "Evicted":
        return bool(OWN_STORAGE.search(str(status.get("message", ""))))
    return not reason and _is_killed_for_memory(ended or {}) and _is_memory_set_aside(pod)


def _is_killed_for_memory(terminated: JsonObject) -> bool:
    return terminated.get("reason") == "OOMKilled"


def _is_memory_set_aside(pod: JsonObject) -> bool:
    """Whether the container's memory is no more than what its node keeps for it: then its own limit comes first."""
    containers: list[JsonObject] = pod.get("spec", {}).get("containers", [])
    resources = next((one for one in containers if one.get("name") == CONTAINER), {}).get("resources", {})
    request, limit = (resources.get(kind, {}).get("memory") for kind in ("requests", "limits"))
    try:
        return quantity(request) == quantity(limit)
    except ValueError:
        return False


def container_id_of(pod: JsonObject) -> str:
    """Of the container that commands run in; empty while it is not known."""
    return str(_container(pod.get("status", {})).get("containerID", ""))


def why_unpullable(container_status: JsonObject) -> str:
    """Why a container's image cannot be pulled; empty when nothing says so."""
    waiting = container_status.get("state", {}).get("waiting", {})
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    kind = kind_of_waiting(reason, message) if reason in ABOUT_IMAGES else None
    return "" if kind is None else _with(f"{kind.seen}: {kind.remedy}", message)


def _judge_waiting(status: JsonObject, waiting: JsonObject, events: Sequence[JsonObject]) -> PodVerdict:
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    kind = kind_of_waiting(reason, message)
    if kind is not None:
        is_hopeless = reason in HOPELESS
        state = PodState.LOST if is_hopeless else PodState.UNPULLABLE
        return PodVerdict(state, _with(f"{kind.seen}: {kind.remedy}", message or _last(events)), is_hopeless)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        what = "it waits for a gate" if scheduled.get("reason") == "SchedulingGated" else "no node has room"
        return PodVerdict(PodState.WAITING, _with(what, scheduled.get("message")))
    return PodVerdict(PodState.WAITING, _with("it is being started", _last(events) or message))


def _why_ended(pod: JsonObject) -> str:
    status = pod.get("status", {})
    reason = str(status.get("reason", ""))
    terminated = _container(status).get("state", {}).get("terminated", {})
    if reason in LOST_REASONS:
        return _with(LOST_REASONS[reason], status.get("message"))
    if reason.startswith("OutOf"):
        return _with("its node had no room after all", status.get("message"))
    disruption = _disruption(status)
    if disruption:
        return disruption
    if reason:
        return _with(f"it failed as {reason}", status.get("message"))
    return _why_terminated(pod, terminated)


def _why_terminated(pod: JsonObject, terminated: JsonObject) -> str:
    code = terminated.get("exitCode")
    if _is_killed_for_memory(terminated):
        what = "it used more memory than its limit and was killed"
        if not _is_memory_set_aside(pod):
            what = "it was killed because memory ran out, within its limit or on its node"
        return f"{what} (OOMKilled, exit code {code})"
    if code is None:
        return "its container ended"
    return _with(f"its first process ended with exit code {code}", terminated.get("message"))


def _disruption(status: JsonObject) -> str:
    condition = _condition(status, "DisruptionTarget")
    if condition.get("status") != "True":
        return ""
    return _with(DISRUPTIONS.get(str(condition.get("reason")), "it was disrupted"), condition.get("message"))


def _unreachable(status: JsonObject) -> str:
    """The node controller marks the pods of a node that stopped answering as not ready, with the node's reason."""
    ready = _condition(status, "Ready")
    if ready.get("status") == "False" and ready.get("reason") in ("NodeStatusUnknown", "NodeNotReady"):
        return _with("its node does not answer", ready.get("message"))
    return ""


def _container(status: JsonObject) -> JsonObject:
    statuses: list[JsonObject] = status.get("containerStatuses", [])
    return next((one for one in statuses if one.get("name") == CONTAINER), statuses[0] if statuses else {})


def _condition(status: JsonObject, kind: str) -> JsonObject:
    conditions: list[JsonObject] = status.get("conditions", [])
    return next((one for one in conditions if one.get("type") == kind), {})


def _last(events: Sequence[JsonObject]) -> str:
    """The latest warning that explains a wait."""
    told = [event for event in events if event.get("reason") in EVENTS_WORTH_TELLING]
    if not told:
        return ""
    latest = max(told, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return f"{latest['reason']}: {latest.get('message', '')}"


def _with(what: str, message: object) -> str:
    words = one_line(str(message or ""))
    return f"{what} ({words})" if words else what
