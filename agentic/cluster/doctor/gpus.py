"""What nodes say about their GPUs: kind, compute capability, and whether the device plug-in offers them. Pure.

A node says it by labels: NVIDIA's feature discovery, the clouds' own, or its instance type. What says nothing is not
judged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from agentic.cluster.resources import JsonObject, name_of
from agentic.cluster.troubles import Trouble, make_trouble

MAJOR, MINOR = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
PRODUCTS = (
    "nvidia.com/gpu.product",
    "aliyun.accelerator/nvidia_name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
)
"""Labels that name the GPU, NVIDIA's own first."""
COUNTS = ("nvidia.com/gpu.count", "aliyun.accelerator/nvidia_count")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

CAPABILITIES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("K80",), (3, 7)),
    **dict.fromkeys(("M40", "M60"), (5, 2)),
    **dict.fromkeys(("P100",), (6, 0)),
    **dict.fromkeys(("P4", "P40"), (6, 1)),
    **dict.fromkeys(("V100", "V100S"), (7, 0)),
    **dict.fromkeys(("T4",), (7, 5)),
    **dict.fromkeys(("A100", "A800", "A30"), (8, 0)),
    **dict.fromkeys(("A10", "A10G", "A16", "A40"), (8, 6)),
    **dict.fromkeys(("L4", "L20", "L40", "L40S"), (8, 9)),
    **dict.fromkeys(("H20", "H100", "H200", "H800", "GH200"), (9, 0)),
    **dict.fromkeys(("B100", "B200", "GB200"), (10, 0)),
}
"""NVIDIA's table of data-centre GPUs."""

OLD_INSTANCES: Mapping[str, str] = {
    "ecs.gn5-": "P100",
    "ecs.gn5i-": "P4",
    "ecs.gn6v-": "V100",
    "ecs.gn6e-": "V100",
    "ecs.gn6i-": "T4",
    "p2.": "K80",
    "p3.": "V100",
    "p3dn.": "V100",
    "g3.": "M60",
    "g4dn.": "T4",
    "Standard_NC6s_v3": "V100",
    "Standard_NC12s_v3": "V100",
    "Standard_NC24s_v3": "V100",
    "Standard_ND40rs_v2": "V100",
}
"""Beginnings of instance types whose GPUs are older than 8.0, by the clouds' documentation."""


def judge_gpus(
    nodes: Sequence[JsonObject], gpu_resource: str, least: tuple[int, int], gpus: int = 1
) -> Iterator[Trouble]:
    """Of nodes that a pod with so many GPUs may land on."""
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        product, capability = describe_gpu(labels)
        where = f"node {name_of(node)}"
        offered = int(((node.get("status") or {}).get("allocatable") or {}).get(gpu_resource) or 0)
        if capability is not None and capability < least and offered >= gpus:
            has = f"{capability[0]}.{capability[1]}"
            message = f"its {product} has compute capability {has}, {least[0]}.{least[1]} is needed"
            yield make_trouble("gpu-too-old", where, message)
        counted = next((int(labels[name]) for name in COUNTS if labels.get(name, "").isdigit()), 1 if product else 0)
        if offered < counted:
            yield make_trouble("gpus-not-offered", where, f"it has {counted} GPUs ({product}) and offers {offered}")


def describe_gpu(labels: Mapping[str, str]) -> tuple[str, tuple[int, int] | None]:
    """What it is called, empty where no GPU is known of, and its compute capability if that is known."""
    named = next((labels[name] for name in PRODUCTS if labels.get(name)), "")
    instance = labels.get(INSTANCE_TYPE, "")
    product = named or next((old for start, old in OLD_INSTANCES.items() if instance.startswith(start)), "")
    if labels.get(MAJOR, "").isdigit():
        minor = labels.get(MINOR, "")
        return product or "GPU", (int(labels[MAJOR]), int(minor) if minor.isdigit() else 0)
    words = re.split(r"[^A-Z0-9]+", product.upper())
    return product, next((CAPABILITIES[word] for word in words if word in CAPABILITIES), None)
