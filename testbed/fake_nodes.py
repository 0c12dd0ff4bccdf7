"""Nodes that only kwok plays: thousands of pods become Ready on them, and none of them runs.

A fake node is tainted, so that only a pod that asks for it by selector and toleration lands there. Its capacity is a
number of our choice, GPUs included.
"""

from pathlib import Path
from typing import Any

import yaml

LABEL = "type"
KIND = "kwok"
ANNOTATION = "kwok.x-k8s.io/node"
TOLERATION = {"key": ANNOTATION, "operator": "Equal", "value": "fake", "effect": "NoSchedule"}
NODE_SELECTOR = {LABEL: KIND}

_STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
"""kwok 0.8 has none built in: a fake node would never become Ready without them."""

_OWNED = ".metadata.ownerReferences.[].kind"
_CONTROLLED = ".metadata.ownerReferences.[] | select( .controller == true ) | .kind"
"""As published, a pod completes when a Job is any of its owners; only a Job that made it should end it."""


def kwok_config(files: Path) -> list[dict[str, Any]]:
    """Stages out of kwok's own module: a node initializes, a pod gets ready, completes (of a Job only), is deleted."""
    paths = [path for folder in _STAGES for path in sorted((files / folder).glob("*.yaml"))]
    texts = [path.read_text().replace(_OWNED, _CONTROLLED) for path in paths if path.name != "kustomization.yaml"]
    return [document for document in map(yaml.safe_load, texts) if document["kind"] == "Stage"]


def fake_node(name: str, *, pods: int = 1000, cpus: int = 640, memory: str = "4Ti", gpus: int = 0) -> dict[str, Any]:
    """The object; it turns Ready by itself once it is applied."""
    capacity = {"cpu": str(cpus), "memory": memory, "pods": str(pods), "ephemeral-storage": "10Ti"}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    labels = {LABEL: KIND, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION: "fake"}},
        "spec": {"taints": [{"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": capacity, "capacity": capacity},
    }
