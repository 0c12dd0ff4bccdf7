"""Clocks, controllers, claims and reachability, each from what a cluster says about itself."""

from datetime import UTC, datetime
from typing import Any

import pytest

from agentic.cluster.doctor import Target
from agentic.cluster.doctor.asking import silent_controllers, skews_of_nodes
from agentic.cluster.doctor.evidence import judge_silence, unwell_containers
from agentic.cluster.doctor.probing import answers_of, judge_answers, probe_pod
from agentic.cluster.doctor.volumes import judge_sizes, name_problem
from agentic.cluster.settings import ClaimSettings, ClusterSettings, Toleration
from agentic.cluster.storage import StorageFacts, storage_problems
from agentic.cluster.troubles.catalogue import CATALOGUE

NOW = 1_800_000_000.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def lease(apart: float) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"renewTime": at(NOW + apart)}}


def test_clocks_that_agree_within_a_renewal_are_no_trouble() -> None:
    assert list(skews_of_nodes([lease(0), lease(-9), lease(-35), lease(25)], NOW, ["n1"])) == []


@pytest.mark.parametrize(
    ("apart", "words"),
    [(95, "95 s ahead of"), (-95, "95 s behind"), (-3600, "3600 s behind"), (-86400 * 365, "31536000 s behind")],
)
def test_a_nodes_clock_that_differs_is_named_with_its_direction(apart: float, words: str) -> None:
    (trouble,) = skews_of_nodes([lease(apart)], NOW, ["n1"])
    assert (trouble.name, trouble.where) == ("clock-skew", "node n1")
    assert words in trouble.message


def test_a_lease_of_a_node_that_is_gone_says_nothing_about_clocks() -> None:
    assert list(skews_of_nodes([lease(-86400), {"metadata": {"name": "n2"}, "spec": {}}], NOW, ["n2"])) == []


def deployment(name: str, available: int, namespace: str = "argo", replicas: int = 1) -> dict[str, Any]:
    status = {"availableReplicas": available} if available else {}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"replicas": replicas}, "status": status}


def silent(*deployments: dict[str, Any]) -> list[str]:
    return [trouble.where for trouble in silent_controllers(deployments, ClusterSettings(namespace="rl"))]


def test_a_controller_without_a_pod_is_named_and_other_deployments_are_not() -> None:
    found = [deployment("workflow-controller", 0), deployment("kuberay-operator", 1), deployment("shop", 0)]
    (trouble,) = silent_controllers(found, ClusterSettings())
    assert trouble.name == "controller-silent"
    assert "Argo Workflows" in trouble.message


def test_another_teams_controller_that_rests_is_no_trouble_while_one_works() -> None:
    assert silent(deployment("workflow-controller", 1), deployment("workflow-controller", 0, "team", 0)) == []
    assert silent(deployment("workflow-controller", 0), deployment("workflow-controller", 0, "team", 0)) != []


def test_only_the_namespaces_own_buildkit_matters() -> None:
    assert silent(deployment("buildkitd", 0, "team"), deployment("buildkitd-of-others", 0, "rl")) == []
    assert silent(deployment("buildkitd", 0, "rl")) == ["deployment buildkitd in rl"]
    assert silent(deployment("buildkitd", 1, "rl")) == []


def test_an_object_that_nobody_took_up_within_a_minute_is_named() -> None:
    def body(kind: str, age: float, **status: str) -> dict[str, Any]:
        made = {"name": "x", "creationTimestamp": at(NOW - age)}
        return {"kind": kind, "metadata": made, **({"status": status} if status else {})}

    objects = [body("Workflow", 90), body("Workflow", 30), body("RayCluster", 90, state="ready"), body("Job", 90)]
    (trouble,) = judge_silence(objects, NOW)
    assert (trouble.name, trouble.where) == ("controller-silent", "workflow x")


def test_each_line_about_storage_has_a_name() -> None:
    disk = ClaimSettings(claim="verl-runs", size="200Gi", storage="block", storage_class="essd")
    cluster = ClusterSettings(runs=disk, node_selector=("kubernetes.io/hostname=gpu-1",))
    labels = {
        "kubernetes.io/hostname": "gpu-1",
        "node.kubernetes.io/instance-type": "ecs.gn5-c8g1.2xlarge",
        "topology.kubernetes.io/zone": "cn-hangzhou-b",
    }
    node = {"metadata": {"name": "gpu-1", "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    essd = {
        "metadata": {"name": "essd"},
        "provisioner": "diskplugin.csi.alibabacloud.com",
        "parameters": {"type": "cloud_essd", "zoneId": "cn-hangzhou-a"},
    }
    claims = {
        name: {"metadata": {"name": name}, "spec": {"accessModes": [mode], "storageClassName": "nas"}, "status": status}
        for name, mode, status in (
            ("verl-models", "ReadWriteOnce", {"phase": "Bound"}),
            ("verl-dataset", "ReadWriteMany", {"phase": "Lost"}),
        )
    }
    facts = StorageFacts(claims=claims, classes=[essd], nodes=[node], volumes=[])
    found = {name_problem(line).name for line in storage_problems(cluster, facts)}
    assert found == {"disk-category", "zone-conflict", "claim-not-shared", "claim-lost"}
    without = storage_problems(ClusterSettings(), StorageFacts(classes=[], nodes=[node], volumes=[]))
    assert {name_problem(line).name for line in without} == {"storage-class-missing"}
    for line in [*storage_problems(cluster, facts), *without]:
        trouble = name_problem(line)
        assert len(trouble.remedy) > 15, "a whole remedy, and no end of one"
        assert trouble.remedy.count("(") == trouble.remedy.count(")")
        assert trouble.message.count("(") == trouble.message.count(")")


@pytest.mark.parametrize(
    ("line", "message", "remedy"),
    [
        (
            "the cluster has no default StorageClass: set cluster.models.storage_class (there are: none)",
            "the cluster has no default StorageClass",
            "set cluster.models.storage_class (there are: none)",
        ),
        (
            "cluster.runs.storage_class is x but there is none of that name (there are: a, b)",
            "cluster.runs.storage_class is x but there is none of that name (there are: a, b)",
            CATALOGUE["storage-class-missing"].remedy,
        ),
        (
            'cluster.runs: the run\'s pods may land on several: set cluster.node_selector=["kubernetes.io/hostname=N"]',
            "cluster.runs: the run's pods may land on several",
            'set cluster.node_selector=["kubernetes.io/hostname=N"]',
        ),
    ],
)
def test_a_line_about_storage_is_cut_before_its_remedy(line: str, message: str, remedy: str) -> None:
    trouble = name_problem(line)
    assert (trouble.message, trouble.remedy) == (message, remedy)


def test_a_claim_is_measured_by_its_capacity_and_one_to_be_made_by_its_setting() -> None:
    cluster = ClusterSettings()
    claim = {"metadata": {"name": "verl-runs"}, "status": {"capacity": {"storage": "100Gi"}}}
    assert [one.where for one in judge_sizes(cluster, {"verl-runs": claim}, {"runs": 110e9})] == ["claim verl-runs"]
    assert list(judge_sizes(cluster, {}, {"runs": 110e9, "models": 50e9})) == []
    (trouble,) = judge_sizes(cluster, {}, {"runs": 320e9})
    assert (trouble.name, trouble.message) == ("claim-too-small", "200Gi for about 298.0 GiB")


def test_what_a_pod_does_not_reach_has_its_own_name() -> None:
    targets = [
        Target("builder-unreachable", "BuildKit", "tcp", "buildkitd:1234"),
        Target("no-egress", "the hub of models", "http", "https://hub.example"),
    ]
    (trouble,) = judge_answers(targets, ["ConnectionRefusedError: [Errno 111] Connection refused", ""])
    assert (trouble.name, trouble.where) == ("builder-unreachable", "pod -> BuildKit")
    assert trouble.message.startswith("buildkitd:1234: ConnectionRefusedError")


def test_the_probe_stands_where_a_light_step_would() -> None:
    taint = Toleration(key="team", value="rl", effect="NoSchedule")
    cluster = ClusterSettings(
        tolerations=(taint,), node_selector=("pool=rl",), image_pull_secret="acr", steps_image="r.example/s:1"
    )
    spec = probe_pod(cluster, [], "runner")["spec"]
    assert spec["tolerations"] == [{"key": "team", "operator": "Equal", "value": "rl", "effect": "NoSchedule"}]
    assert spec["nodeSelector"] == {"pool": "rl"}
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("runner", False)
    assert spec["imagePullSecrets"] == [{"name": "acr"}]
    assert spec["containers"][0]["image"] == "r.example/s:1"


def test_the_probes_answers_are_its_containers_message() -> None:
    ended = {"terminated": {"exitCode": 0, "message": '["", "gaierror: x"]'}}
    assert answers_of({"status": {"containerStatuses": [{"state": ended}]}}) == ["", "gaierror: x"]
    assert answers_of({"status": {"phase": "Pending"}}) is None
    ended["terminated"]["message"] = "hello from the image"
    assert answers_of({"status": {"containerStatuses": [{"state": ended}]}}) is None


def test_logs_are_wanted_of_containers_that_ended_badly_but_argos_own() -> None:
    bad, good = {"terminated": {"exitCode": 1}}, {"terminated": {"exitCode": 0}}
    statuses = [
        {"name": "main", "state": bad},
        {"name": "wait", "state": bad},
        {"name": "helper", "state": good},
        {"name": "looping", "state": {"waiting": {}}, "lastState": bad},
    ]
    assert unwell_containers({"status": {"containerStatuses": statuses}}) == ["main", "looping"]
