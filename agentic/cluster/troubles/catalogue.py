"""Every trouble that has a name: what it is, what to do about it, and by which words of whom it is seen.

One module for each topic holds the rows. The first row with a sign that fits is taken, general ones last.
docs/troubles.md is made of them; a test compares.
"""

from collections.abc import Mapping

from agentic.cluster.troubles import (
    access,
    containers,
    gpu,
    images,
    network,
    room,
    storage,
    training,
    workflow,
)
from agentic.cluster.troubles.kinds import Kind

TOPICS: Mapping[str, tuple[Kind, ...]] = {
    "Reaching the cluster, rights and kinds": access.KINDS,
    "Images": images.KINDS,
    "GPUs": gpu.KINDS,
    "Room for pods": room.KINDS,
    "Volumes": storage.KINDS,
    "Pods and containers": containers.KINDS,
    "The run": training.KINDS,
    "Reachability": network.KINDS,
    "The workflow": workflow.KINDS,
}

CATALOGUE: Mapping[str, Kind] = {kind.name: kind for kinds in TOPICS.values() for kind in kinds}
"""By name."""

LOOK_UP: tuple[Kind, ...] = tuple(sorted(CATALOGUE.values(), key=lambda kind: kind.is_general))
"""In the order in which a text is compared with them."""
