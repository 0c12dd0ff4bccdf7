"""Pods against nodes: what never fits, what does not fit now, and the largest that would."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.cluster.doctor import PodNeed
from agentic.cluster.doctor.capacity import concerned
from agentic.cluster.doctor.fitting import judge_room, read_nodes, requests_of
from agentic.cluster.quantities import quantity
from agentic.cluster.troubles import Trouble

GPU = "nvidia.com/gpu"


def node(
    name: str = "gpu-1", *, cpu: str = "7910m", memory: str = "30Gi", gpus: int = 0, **more: Any
) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    labels = {"kubernetes.io/hostname": name, **more.get("labels", {})}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": more.get("ready", "True")}]}
    spec = {"taints": more.get("taints", []), "unschedulable": more.get("closed", False)}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def pod(node_name: str, cpu: str, memory: str = "1Gi", phase: str = "Running") -> dict[str, Any]:
    container = {"resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {"spec": {"nodeName": node_name, "containers": [container]}, "status": {"phase": phase}}


def need(cpus: str = "4", memory: str = "8Gi", gpus: int = 0, **more: Any) -> PodNeed:
    return PodNeed("the head", "cluster.head", quantity(cpus), quantity(memory), gpus, **more)


def judge(want: PodNeed, nodes: list[dict[str, Any]], pods: list[dict[str, Any]] | None = None) -> list[Trouble]:
    return list(judge_room([want], read_nodes(nodes, pods), GPU))


def names(troubles: list[Trouble]) -> list[str]:
    return [trouble.name for trouble in troubles]


def test_a_pod_that_fits_is_no_trouble() -> None:
    assert judge(need(), [node()], [pod("gpu-1", "1")]) == []


def test_eight_cpus_of_a_machine_are_less_than_eight_to_ask_for() -> None:
    (trouble,) = judge(need(cpus="8"), [node(cpu="7910m")])
    assert trouble.name == "larger-than-any-node"
    assert not trouble.transient
    assert "7.91 CPUs" in trouble.message
    assert trouble.remedy == "at most cluster.head of 7 CPUs would fit: lower it, or add larger nodes"


def test_all_that_is_too_large_is_named_with_what_would_fit_on_the_closest_node() -> None:
    nodes = [node("small", cpu="4", memory="8Gi"), node("gpu-1", cpu="31", memory="120Gi", gpus=4)]
    (trouble,) = judge(need("50", "200Gi", 8), nodes)
    assert "gpu-1 offers 31 CPUs, 120.0 GiB, 4 GPUs" in trouble.message
    assert trouble.remedy.startswith(
        "at most cluster.head of 31 CPUs and cluster.head of 120Gi memory and cluster.head of 4 GPUs would fit"
    )


def test_a_cluster_without_gpus_offers_none() -> None:
    (trouble,) = judge(need(gpus=8), [node()])
    assert trouble.remedy.startswith("at most cluster.head of 0 GPUs would fit")


def test_what_other_pods_use_may_come_free() -> None:
    (trouble,) = judge(need(), [node()], [pod("gpu-1", "3"), pod("gpu-1", "2"), pod("gpu-1", "7", phase="Succeeded")])
    assert (trouble.name, trouble.transient) == ("no-room-for-cpu", True)
    assert "2.91 CPUs" in trouble.message


def test_memory_that_others_use_is_called_memory() -> None:
    assert names(judge(need(), [node()], [pod("gpu-1", "1", "25Gi")])) == ["no-room-for-memory"]


def test_many_pods_need_room_for_all_of_them_at_once() -> None:
    nodes = [node("a"), node("b")]
    assert judge(need("2", "1Gi", count=6), nodes, []) == []
    (trouble,) = judge(need("2", "1Gi", count=7), nodes, [])
    assert "there is room for 6" in trouble.message


@pytest.mark.parametrize(
    ("cpus", "memory", "gpus", "name"),
    [
        ("0.1", "4Gi", 0, "no-room-for-memory"),
        ("0.5", "16Mi", 0, "no-room-for-cpu"),
        ("0.01", "16Mi", 0, "no-room-for-pods"),
        ("0.01", "16Mi", 1, "no-room-for-gpu"),
    ],
)
def test_what_many_pods_lack_is_called_by_what_is_scarce(cpus: str, memory: str, gpus: int, name: str) -> None:
    nodes = [node("a", cpu="32", memory="16Gi", gpus=2), node("b", cpu="32", memory="16Gi", gpus=2)]
    assert names(judge(need(cpus, memory, gpus, count=256), nodes, [])) == [name]


def test_pods_that_run_take_from_the_number_that_a_node_allows() -> None:
    running = [pod("gpu-1", "1m", "1Mi") for _ in range(108)]
    assert judge(need("1m", "1Mi", count=2), [node()], running) == []
    assert names(judge(need("1m", "1Mi", count=3), [node()], running)) == ["no-room-for-pods"]


def test_pods_of_others_that_cannot_be_seen_are_not_judged() -> None:
    assert judge(need(), [node()], None) == []


def test_labels_that_no_node_has_are_named() -> None:
    (trouble,) = judge(need(selector={"pool": "gpu"}), [node()])
    assert (trouble.name, trouble.message) == ("nodes-not-selected", "no node of 1 has the labels pool=gpu")


def test_a_taint_is_named_unless_it_is_tolerated() -> None:
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    (trouble,) = judge(need(), [node(taints=taints)])
    assert (trouble.name, trouble.message) == (
        "nodes-tainted",
        "every node it may run on has taints: nvidia.com/gpu=present:NoSchedule",
    )
    for toleration in (
        {"key": "nvidia.com/gpu", "operator": "Exists", "value": "", "effect": ""},
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
    ):
        assert judge(need(tolerations=[toleration]), [node(taints=taints)]) == []
    other = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "absent", "effect": "NoSchedule"}
    assert names(judge(need(tolerations=[other]), [node(taints=taints)])) == ["nodes-tainted"]


def test_nodes_that_are_cordoned_or_not_ready_take_nothing() -> None:
    nodes = [node("a", closed=True), node("b", ready="False")]
    assert names(judge(need(), nodes)) == ["nodes-closed"]


def test_nodes_that_no_pod_of_the_run_may_land_on_are_not_looked_at() -> None:
    mine, other = node("a", labels={"pool": "gpu"}), node("b", labels={"pool": "web"})
    assert concerned([mine, other], [need(selector={"pool": "gpu"})]) == [mine]
    assert concerned([mine, other], [need(selector={"pool": "gpu"}), need()]) == [mine, other]
    assert concerned([mine, other], []) == [mine, other]


def test_what_runs_before_the_containers_counts_by_its_largest_and_sidecars_count_along() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "2"}}}],
        "initContainers": [
            {"resources": {"requests": {"cpu": "5"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    assert requests_of(spec)["cpu"] == Decimal("5.25")


@given(cpus=st.integers(1, 128), memory=st.integers(1, 2048), gpus=st.integers(0, 16))
def test_what_is_said_to_fit_at_most_does_fit(cpus: int, memory: int, gpus: int) -> None:
    offered = node(cpu="63500m", memory="500Gi", gpus=4)
    for trouble in judge(need(str(cpus), f"{memory}Gi", gpus), [offered]):
        assert trouble.name == "larger-than-any-node"
        smaller = need(str(min(cpus, 63)), f"{min(memory, 500)}Gi", min(gpus, 4))
        assert judge(smaller, [offered]) == []
