"""Which GPUs nodes have, by the labels that discovery and clouds give them."""

from typing import Any

import pytest

from agentic.cluster.doctor.gpus import describe_gpu, judge_gpus

GPU = "nvidia.com/gpu"


def node(gpus: int, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": {GPU: str(gpus)}}}


@pytest.mark.parametrize(
    ("labels", "capability"),
    [
        ({"nvidia.com/gpu.compute.major": "7", "nvidia.com/gpu.compute.minor": "0"}, (7, 0)),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, (8, 0)),
        ({"nvidia.com/gpu.product": "NVIDIA-H20"}, (9, 0)),
        ({"aliyun.accelerator/nvidia_name": "Tesla-P100-PCIE-16GB"}, (6, 0)),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, (7, 5)),
        ({"k8s.amazonaws.com/accelerator": "a10g"}, (8, 6)),
        ({"node.kubernetes.io/instance-type": "ecs.gn5-c8g1.2xlarge"}, (6, 0)),
        ({"node.kubernetes.io/instance-type": "p3.16xlarge"}, (7, 0)),
        ({"nvidia.com/gpu.product": "Something-New"}, None),
        ({"node.kubernetes.io/instance-type": "m5.large"}, None),
    ],
)
def test_the_capability_is_read_from_what_a_node_says(
    labels: dict[str, str], capability: tuple[int, int] | None
) -> None:
    assert describe_gpu(labels)[1] == capability


def test_a_gpu_older_than_the_images_kernels_is_named() -> None:
    old = node(8, **{"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"})
    (trouble,) = judge_gpus([old, node(8, **{"nvidia.com/gpu.product": "NVIDIA-H100"})], GPU, (8, 0), 8)
    assert trouble.name == "gpu-too-old"
    assert trouble.message == "its Tesla-V100-SXM2-32GB has compute capability 7.0, 8.0 is needed"


def test_a_node_with_too_few_gpus_for_the_pod_takes_it_anyway_not() -> None:
    assert list(judge_gpus([node(4, **{"nvidia.com/gpu.product": "Tesla-V100"})], GPU, (8, 0), 8)) == []


def test_gpus_that_the_device_plugin_does_not_offer_are_named() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.count": "8"}
    (trouble,) = judge_gpus([node(0, **labels)], GPU, (8, 0), 8)
    assert (trouble.name, trouble.message) == ("gpus-not-offered", "it has 8 GPUs (NVIDIA-H100) and offers 0")


def test_a_node_without_gpus_is_none_of_it() -> None:
    assert list(judge_gpus([node(0)], GPU, (8, 0), 8)) == []
