"""What components said about one object, taken out of where each of them writes it.

An observation is one text at one place. Events about an object that is well by now are no observations: a pod that runs
was unschedulable once, and nobody needs to hear of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from agentic.cluster.errors import one_line
from agentic.cluster.resources import JsonObject, name_of
from agentic.cluster.troubles.kinds import Evidence


class Place(Enum):
    """Who says it, and so which words it can hold."""

    WAITING = "waiting"
    """A container's waiting state, `reason: message`."""
    ENDED = "ended"
    """A container's end, `reason (exit code n): message`."""
    POD = "pod"
    """A pod's own reason, or a condition of it that is not as it should be."""
    EVENT = "event"
    """`reason: message`."""
    OBJECT = "object"
    """State, phase, conditions and message of anything else."""
    LOG = "log"
    """One line of a log."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One text at one place."""

    place: Place
    about: str
    """The object, such as `pod x`; what general kinds of trouble yield within."""
    where: str
    """The object, and the part of it."""
    text: str


def observe(evidence: Evidence) -> Iterator[Observation]:
    """All of it, states before events before logs: the first that shows a trouble is the one that is told."""
    well = set()
    for pod in evidence.pods:
        yield from _of_pod(pod)
        well |= {_about(pod)} if _is_pod_well(pod) else set()
    for event in evidence.events:
        about = _about_of_event(event)
        if about not in well:
            yield Observation(Place.EVENT, about, about, f"{event.get('reason', '')}: {event.get('message') or ''}")
    for name, text in evidence.logs.items():
        for line in text.splitlines():
            yield Observation(Place.LOG, f"log {name}", f"log {name}", line)


def _about(body: JsonObject) -> str:
    return f"{str(body.get('kind') or 'Pod').lower()} {name_of(body)}"


def _about_of_event(event: JsonObject) -> str:
    target = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(target.get('kind', 'object')).lower()} {target.get('name', '')}"


def _of_pod(pod: JsonObject) -> Iterator[Observation]:
    about, status = _about(pod), pod.get("status", {})
    if status.get("reason"):
        yield Observation(Place.POD, about, about, f"{status['reason']}: {status.get('message') or ''}")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Observation(Place.POD, about, about, f"{condition.get('reason')}: {condition.get('message') or ''}")
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        yield from _of_container(about, container)


def _of_container(about: str, container: JsonObject) -> Iterator[Observation]:
    where = f"{about}, container {container.get('name', '')}"
    state, last = container.get("state") or {}, container.get("lastState") or {}
    if waiting := state.get("waiting"):
        text = f"{waiting.get('reason', '')}: {waiting.get('message') or ''}"
        yield Observation(Place.WAITING, about, where, text)
    for ended in (state.get("terminated"), last.get("terminated")):
        if ended:
            text = (
                f"{ended.get('reason', '')} (exit code {ended.get('exitCode')}): {one_line(ended.get('message') or '')}"
            )
            yield Observation(Place.ENDED, about, where, text)


def _is_pod_well(pod: JsonObject) -> bool:
    status = pod.get("status", {})
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return status.get("phase") == "Succeeded" or ready
