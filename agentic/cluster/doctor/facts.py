"""What a run needs of a cluster, as numbers and names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from agentic.cluster.resources import JsonObject, Resource
from agentic.cluster.settings import ClusterSettings


@dataclass(frozen=True, slots=True)
class PodNeed:
    """Pods of one kind."""

    name: str
    """For people, such as `the RayCluster's head`."""
    setting: str
    """Where its share is set, such as `cluster.head`."""
    cpus: Decimal
    memory_bytes: Decimal
    gpus: int = 0
    count: int = 1
    """That have to run at once."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of its nodes."""
    tolerations: Sequence[JsonObject] = ()
    """As in a pod's spec."""
    namespace: str | None = None
    """Where they run; None is the pipeline's."""


@dataclass(frozen=True, slots=True)
class ImageUse:
    """An image, and the Secrets that it is pulled with."""

    image: str
    setting: str
    """Where it is named."""
    secrets: tuple[str, ...] = ()
    namespace: str | None = None
    """Where it is pulled; None is the pipeline's."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a pod has to reach."""

    trouble: str
    """Of the catalogue: what it is called when it is not reached."""
    what: str
    """For people, such as `the package index`."""
    kind: Literal["tcp", "http", "pip"]
    address: str
    """`host:port`, a URL, or the package that pip's index is asked for."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks compare a cluster with."""

    cluster: ClusterSettings
    rules: Sequence[JsonObject] = ()
    """Of a Role: what the account that asks has to be allowed."""
    kinds: Sequence[Resource] = ()
    """What has to be served."""
    images: Sequence[ImageUse] = ()
    pods: Sequence[PodNeed] = ()
    volume_bytes: Mapping[str, float] = field(default_factory=dict)
    """Section of a claim (`models`, `datasets`, `runs`) to what a run keeps in it."""
    targets: Sequence[Target] = ()
    """For `probing`."""
    makes_what_lacks: bool = False
    """Whether who asks is who submits, and makes the claims and the account that are not there."""
    builds_in_namespace: bool = False
    """Whether images are built by the BuildKit of the namespace, which may be there already."""
    gpu_capability: tuple[int, int] = (8, 0)
    """Least compute capability of the GPUs: what the images' kernels are built for."""
