"""Claims against settings and against what a cluster says of itself: wrong combinations by their reason."""

from collections.abc import Sequence
from typing import Any

import pytest

from agentic.cluster.resources import CLAIMS, NODES, STORAGE_CLASSES, VOLUMES, JsonObject
from agentic.cluster.settings import ClusterSettings
from agentic.cluster.storage import DEFAULT_CLASS, StorageFacts, storage_problems

ONE_NODE: dict[str, Any] = {"node_selector": ["kubernetes.io/hostname=gpu-1"]}
NAS, DISK = "nasplugin.csi.alibabacloud.com", "diskplugin.csi.alibabacloud.com"
ZONE = "topology.kubernetes.io/zone"


def settings(models: dict[str, Any] | None = None, **more: Any) -> ClusterSettings:
    claim = {"claim": "verl-models", "size": "50Gi", **(models or {})}
    return ClusterSettings.model_validate({"models": claim, **more})


def storage_class(name: str, provisioner: str, **more: Any) -> JsonObject:
    is_default = more.pop("is_default", False)
    head = STORAGE_CLASSES.head(name, annotations={DEFAULT_CLASS: "true"} if is_default else {})
    return {**head, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer", **more}


def node(name: str, zone: str = "a", kind: str = "ecs.gn7i-c8g1.2xlarge", gpus: int = 8) -> JsonObject:
    labels = {"kubernetes.io/hostname": name, ZONE: zone, "node.kubernetes.io/instance-type": kind}
    allocatable = {"cpu": "64", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {**NODES.head(name, labels=labels), "status": {"allocatable": allocatable}}


def claim(name: str = "verl-models", phase: str = "Bound", **spec: Any) -> JsonObject:
    return {**CLAIMS.head(name), "spec": {"accessModes": ["ReadWriteMany"], **spec}, "status": {"phase": phase}}


SHARED = storage_class("nas", NAS, is_default=True)


def only(found: Sequence[str]) -> str:
    (line,) = found
    return line


def test_the_defaults_are_fine_whatever_is_known() -> None:
    assert storage_problems(settings()) == []
    assert storage_problems(settings(), StorageFacts(classes=[SHARED], nodes=[node("gpu-1")])) == []


def test_a_disk_is_refused_for_several_nodes() -> None:
    line = only(storage_problems(settings({"storage": "block"}, workers={"replicas": 1}, **ONE_NODE)))
    assert line == (
        "cluster.models.storage is block, a disk that one node mounts at a time, but cluster.workers.replicas is 1: "
        "set it to shared, or train on one node"
    )


def test_a_disk_is_refused_where_pods_may_land_on_several_nodes() -> None:
    line = only(storage_problems(settings({"storage": "block"})))
    assert 'cluster.node_selector=["kubernetes.io/hostname=NODE"]' in line
    assert storage_problems(settings({"storage": "block"}, **ONE_NODE)) == []


def test_shared_storage_from_a_class_of_disks_is_refused() -> None:
    facts = StorageFacts(classes=[storage_class("essd", DISK), SHARED])
    line = only(storage_problems(settings({"storage_class": "essd"}), facts))
    assert line.startswith("cluster.models.storage is shared but StorageClass essd makes disks")


def test_a_class_that_is_not_there_is_named_with_those_that_are() -> None:
    facts = StorageFacts(classes=[storage_class("essd", DISK), SHARED])
    assert "there are: essd, nas" in only(storage_problems(settings({"storage_class": "nfs"}), facts))


def test_without_a_default_class_one_has_to_be_named() -> None:
    found = storage_problems(settings(), StorageFacts(classes=[storage_class("nas", NAS)]))
    assert [line.partition(":")[0] for line in found] == ["the cluster has no default StorageClass"] * 3


def test_an_empty_class_stands_for_a_volume_that_an_admin_made() -> None:
    named = {name: {"claim": name, "size": "1Gi", "storage_class": ""} for name in ("models", "datasets", "runs")}
    assert storage_problems(ClusterSettings.model_validate(named), StorageFacts(classes=[])) == []


def test_a_category_that_the_instance_type_does_not_attach_is_refused() -> None:
    facts = StorageFacts(
        classes=[SHARED, storage_class("essd", DISK, parameters={"type": "cloud_essd"})],
        nodes=[node("gpu-1", kind="ecs.gn5-c4g1.xlarge")],
    )
    line = only(storage_problems(settings({"storage": "block", "storage_class": "essd"}, **ONE_NODE), facts))
    assert "InvalidInstanceType.NotSupportDiskCategory" in line
    assert "ecs.gn5-c4g1.xlarge attach cloud_ssd, cloud_efficiency alone" in line


@pytest.mark.parametrize(
    ("category", "kind"),
    [("cloud_ssd", "ecs.gn5-c4g1.xlarge"), ("cloud_essd", "ecs.gn7i-c8g1.2xlarge"), ("", "ecs.gn5-c4g1.xlarge")],
)
def test_a_category_that_fits_or_is_not_known_is_fine(category: str, kind: str) -> None:
    chosen = storage_class("disk", DISK, parameters={"type": category})
    facts = StorageFacts(classes=[SHARED, chosen], nodes=[node("gpu-1", kind=kind)])
    assert storage_problems(settings({"storage": "block", "storage_class": "disk"}, **ONE_NODE), facts) == []


@pytest.mark.parametrize(
    "places",
    [
        {"parameters": {"zoneId": "b"}},
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["b", "c"]}]}]},
    ],
)
def test_a_class_of_another_zone_is_refused(places: dict[str, Any]) -> None:
    facts = StorageFacts(classes=[SHARED, storage_class("disk", DISK, **places)], nodes=[node("gpu-1", "a")])
    line = only(storage_problems(settings({"storage": "block", "storage_class": "disk"}, **ONE_NODE), facts))
    assert "ResourcesNotInSameZone" in line
    assert "the nodes for Ray are in a" in line


def test_the_volume_of_a_claim_that_exists_tells_its_zone() -> None:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]
    volume = {**VOLUMES.head("pv-1"), "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    there = claim(accessModes=["ReadWriteOnce"], volumeName="pv-1", storageClassName="disk")
    facts = StorageFacts(claims={"verl-models": there}, classes=[SHARED], nodes=[node("gpu-1", "a")], volumes=[volume])
    line = only(storage_problems(settings({"storage": "block"}, **ONE_NODE), facts))
    assert "its volume pv-1 is in zone b but the nodes for Ray are in a" in line


def test_a_disk_made_at_once_in_any_zone_is_refused_when_gpus_are_in_some() -> None:
    chosen = storage_class("disk", DISK, volumeBindingMode="Immediate")
    nodes = [node("gpu-1", "a"), node("cpu-1", "b", gpus=0)]
    wanted = settings({"storage": "block", "storage_class": "disk"}, **ONE_NODE)
    line = only(storage_problems(wanted, StorageFacts(classes=[SHARED, chosen], nodes=nodes)))
    assert "WaitForFirstConsumer" in line
    assert storage_problems(wanted, StorageFacts(classes=[SHARED, chosen], nodes=nodes[:1])) == []


def test_nodes_without_a_gpu_do_not_count_unless_none_is_needed() -> None:
    facts = StorageFacts(
        classes=[SHARED, storage_class("disk", DISK, parameters={"zoneId": "b"})], nodes=[node("cpu-1", "a", gpus=0)]
    )
    wanted: dict[str, Any] = {"node_selector": ["kubernetes.io/hostname=cpu-1"]}
    models = {"storage": "block", "storage_class": "disk"}
    assert storage_problems(settings(models, **wanted), facts) == []
    assert storage_problems(settings(models, head={"gpus": 0}, **wanted), facts) != []


def test_a_claim_that_exists_is_judged_by_what_it_is() -> None:
    facts = StorageFacts(claims={"verl-models": claim(accessModes=["ReadWriteOnce"])}, classes=[])
    found = storage_problems(settings(), facts)
    assert found[0].startswith("claim verl-models exists with ReadWriteOnce, which several nodes cannot mount")
    lost = StorageFacts(claims={"verl-models": claim(phase="Lost")}, classes=[SHARED])
    assert only(storage_problems(settings(), lost)).startswith("claim verl-models has lost its volume")


@pytest.mark.parametrize(("mode", "why"), [("ReadWriteOncePod", "one pod mounts"), ("ReadOnlyMany", "be written to")])
@pytest.mark.parametrize("storage", ["shared", "block"])
def test_a_claim_that_no_run_can_use_is_refused_as_either_kind(mode: str, why: str, storage: str) -> None:
    facts = StorageFacts(claims={"verl-models": claim(accessModes=[mode])})
    line = only(storage_problems(settings({"storage": storage}, **ONE_NODE), facts))
    assert line.startswith(f"claim verl-models exists with {mode} alone, which ")
    assert why in line


def test_a_volume_that_is_bound_to_a_node_by_its_name_has_no_zone_to_compare() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]
    volume = {**VOLUMES.head("pv-1"), "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    there = claim(accessModes=["ReadWriteOnce"], volumeName="pv-1", storageClassName="disk")
    facts = StorageFacts(claims={"verl-models": there}, classes=[SHARED], nodes=[node("gpu-1", "a")], volumes=[volume])
    assert storage_problems(settings({"storage": "block"}, **ONE_NODE), facts) == []
