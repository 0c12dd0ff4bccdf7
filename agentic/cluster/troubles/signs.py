"""By which words of which component each trouble is seen, one row each; the first row that matches is taken."""

import re
from dataclasses import dataclass

from agentic.cluster.troubles.observations import Place


@dataclass(frozen=True, slots=True)
class Sign:
    """Words at places, and what they show."""

    name: str
    """Of the catalogue."""
    places: frozenset[Place]
    words: re.Pattern[str]
    source: str
    """The component that says so."""


def _sign(name: str, places: tuple[Place, ...], words: str, source: str) -> Sign:
    return Sign(name, frozenset(places), re.compile(words), source)


PULLING = (Place.WAITING, Place.EVENT)
PULL = r"(?:^Failed|^ErrImagePull|^ImagePullBackOff)\b.*"

SIGNS = (
    _sign("image-name-invalid", PULLING, r"^InvalidImageName\b|^InspectFailed: .*invalid reference format", "kubelet"),
    _sign(
        "image-refused",
        PULLING,
        PULL + r"(?:401 Unauthorized|403 Forbidden|authorization failed|authentication required|no basic auth|denied)",
        "containerd",
    ),
    _sign("image-missing", PULLING, PULL + r"(?:not found|manifest unknown|does not exist)", "containerd"),
    _sign("image-not-pulled", PULLING, r"^ErrImagePull\b|^ImagePullBackOff\b|^Failed: Failed to pull image", "kubelet"),
    _sign("no-room-for-gpu", (Place.POD, Place.EVENT), r"\bInsufficient nvidia\.com/gpu", "kube-scheduler"),
    _sign("no-room-for-memory", (Place.POD, Place.EVENT), r"\bInsufficient memory", "kube-scheduler"),
    _sign("no-room-for-cpu", (Place.POD, Place.EVENT), r"\bInsufficient cpu", "kube-scheduler"),
    _sign("unschedulable", (Place.POD, Place.EVENT), r"^Unschedulable\b|^FailedScheduling\b", "kube-scheduler"),
    _sign("out-of-memory", (Place.ENDED,), r"^OOMKilled\b", "containerd"),
    _sign("crash-loop", (Place.WAITING,), r"^CrashLoopBackOff\b", "kubelet"),
)
