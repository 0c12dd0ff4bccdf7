"""Every trouble that has a name: what it is and what to do about it, one row each.

The rows are the whole of docs/troubles.md's table; a test compares. How a trouble is seen stands in `signs`, or in the
check of `agentic.cluster.doctor` that reports it.
"""

from collections.abc import Mapping

from agentic.cluster.troubles.kinds import Kind

IMAGES = (
    Kind(
        "image-missing",
        "an image that the registry does not have",
        "build and push it, or correct its name and tag",
    ),
    Kind(
        "image-refused",
        "the registry does not let the node pull",
        "name a Secret with that registry's host and region in cluster.image_pull_secret or sandbox.image_pull_secrets",
    ),
    Kind(
        "image-name-invalid",
        "what is no image name",
        "correct the image's name in the settings or the task",
    ),
    Kind(
        "image-not-pulled",
        "an image that cannot be pulled",
        "look at the registry's answer in the message; check name, secret and the node's way out",
        transient=True,
        general_of=frozenset(["image-missing", "image-refused", "image-name-invalid"]),
    ),
)

ROOM = (
    Kind("no-room-for-cpu", "no node has the CPUs left", "ask for less than a node's allocatable, or add nodes", True),
    Kind(
        "no-room-for-memory",
        "no node has the memory left",
        "ask for less than a node's allocatable, or add nodes",
        True,
    ),
    Kind(
        "no-room-for-gpu", "no node has the GPUs left", "lower the GPUs, wait for other pods to end, or add nodes", True
    ),
    Kind(
        "unschedulable",
        "a pod that no node takes",
        "read what each node lacks in the message",
        True,
        frozenset(["no-room-for-cpu", "no-room-for-memory", "no-room-for-gpu"]),
    ),
)

CONTAINERS = (
    Kind(
        "out-of-memory", "a container killed for memory", "raise its memory in the settings, or make it use less", True
    ),
    Kind(
        "crash-loop",
        "a container that ends again and again",
        "read its last log lines: kubectl logs POD -c CONTAINER --previous",
        True,
        frozenset(["out-of-memory"]),
    ),
)

CATALOGUE: Mapping[str, Kind] = {kind.name: kind for kind in (*IMAGES, *ROOM, *CONTAINERS)}
