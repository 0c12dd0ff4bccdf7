"""What is looked at, what is found, and how a kind of trouble is described."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the catalogue."""

    name: str
    seen: str
    """What is wrong, for people, in half a sentence."""
    remedy: str
    """What to do, on one line."""
    transient: bool = False
    """Whether it may pass without a change."""
    general_of: frozenset[str] = frozenset()
    """Kinds that say the same more exactly: where one of them is found at the same object, this one is left out."""
