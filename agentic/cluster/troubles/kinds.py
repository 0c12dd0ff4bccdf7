"""What is looked at, what is found, and how a kind of trouble is described and seen."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from agentic.cluster.resources import JsonObject


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble, found at one place."""

    name: str
    """Of the catalogue, such as `image-missing`."""
    where: str
    """Such as `pod raycluster-verl-head-x, container ray-head` or `log train`."""
    message: str
    """What was seen, in the words of who said it, on one line."""
    remedy: str
    """What to do, on one line."""
    transient: bool = False
    """Whether it may pass without a change."""

    @property
    def line(self) -> str:
        return f"{self.name}: {self.where}: {self.message}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known; objects are plain JSON as the API server gives them."""

    pods: Sequence[JsonObject] = ()
    """With their status."""
    events: Sequence[JsonObject] = ()
    """Those about an object that is well by now are left aside."""
    objects: Sequence[JsonObject] = ()
    """Anything else that has a state: claims, Jobs, RayClusters, Workflows, nodes, sandboxes."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Name of a log to its text, or its tail."""
    with_past: bool = False
    """Whether it is told why a container was started again whose pod is well by now."""


class Place(Enum):
    """Who says something, and so which words it can hold."""

    WAITING = "waiting"
    """A container's waiting state, `reason: message`."""
    ENDED = "ended"
    """A container's end, `reason (exit code n): message`."""
    POD = "pod"
    """A pod's own reason, or a condition of it that is not as it should be, `reason: message`."""
    EVENT = "event"
    """`reason: message`."""
    OBJECT = "object"
    """State, phase, conditions and messages of anything else; of a Workflow, what its nodes say."""
    LOG = "log"
    """One line of a log."""
    ANSWER = "answer"
    """What the API server answered to a request."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Words at places."""

    places: frozenset[Place]
    words: re.Pattern[str]
    source: str
    """The component that says so, and where in it that stands."""


def sign(places: Sequence[Place], words: str, source: str) -> Sign:
    return Sign(frozenset(places), re.compile(words), source)


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the catalogue."""

    name: str
    seen: str
    """What is wrong, for people, in half a sentence."""
    remedy: str
    """What to do, on one line."""
    signs: tuple[Sign, ...] = ()
    """None: only a check of the doctor finds it."""
    transient: bool = False
    """Whether it may pass without a change."""
    is_general: bool = False
    """Left out where anything more exact is found at the same object."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """What to do where it matters whose pod it is: an owner of `observations`, or its first word, to a remedy."""
    found_by: str = "doctor"
    """Who finds one without signs."""


PULLING = (Place.WAITING, Place.EVENT, Place.OBJECT)
"""Where kubelet says why an image is not there; a Workflow's node repeats it."""
SCHEDULING = (Place.POD, Place.EVENT, Place.OBJECT)
STARTING = (Place.WAITING, Place.ENDED, Place.EVENT, Place.OBJECT)
ENDING = (Place.ENDED, Place.OBJECT)
MAKING = (Place.EVENT, Place.OBJECT, Place.ANSWER, Place.LOG, Place.ENDED)
"""Where the API server's refusal of a new object shows: at who wanted it."""
SAYING = (Place.LOG, Place.ENDED, Place.OBJECT)
"""What a program says: its log, or its last words as the container's message."""
