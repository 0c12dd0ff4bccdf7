"""The objects of each profile: as reviewed, accepted by the published schemas, and called what people expect."""

import copy
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from agentic.cluster.objects.image_build import ImageBuild, image_build_job
from agentic.cluster.resources import RAY_CLUSTERS, resource_of
from agentic.cluster.settings import label_map, toleration_list
from workflows.objects import sandbox_rights, write_objects
from workflows.pipeline import build_workflow
from workflows.settings import Settings, load_settings, profile_names

HERE = Path(__file__).parent
CRDS = HERE.parent / "crds"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast, where it was built."""
PACKAGES = {
    "v1": "core.v1",
    "apps/v1": "apps.v1",
    "batch/v1": "batch.v1",
    "networking.k8s.io/v1": "networking.v1",
    "rbac.authorization.k8s.io/v1": "rbac.v1",
}

VARIANTS = {
    "several-nodes": [
        "cluster.workers.replicas=3",
        "train.nodes=4",
        "cluster.queue=gpus",
        "cluster.priority_class=high",
    ],
    "private-images": ["cluster.image_pull_secret=acr-registry", "cluster.run_as_user=null"],
    "rootless-builder": [
        "cluster.buildkit.rootless=true",
        "cluster.buildkit.image=moby/buildkit:v0.32.2-rootless",
        "cluster.buildkit.server_secret=buildkit-daemon-certs",
        "images.buildkit_tls_secret=buildkit-client-certs",
        'cluster.buildkit.mirrors=["mirror.example"]',
        'images.registry.plain_http=["10.0.0.5:5000"]',
    ],
    "kruise": ["sandbox.provider=kruise", "sandbox.proxy_port=8400"],
    "agent-sandbox-elsewhere": ["sandbox.provider=agent-sandbox", "sandbox.namespace=boxes"],
    "pods": ["sandbox.provider=pod", "sandbox.proxy_port=8400", 'cluster.ray_clients=["app=prometheus"]'],
    "one-disk": [
        "cluster.models.storage=block",
        "cluster.models.storage_class=disk",
        'cluster.node_selector=["kubernetes.io/hostname=gpu-1"]',
        'cluster.tolerations=[{"key": "pool", "value": "gpu", "effect": "NoSchedule"}]',
        'cluster.ray_tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]',
        'cluster.buildkit.node_selector=["pool=build"]',
        'cluster.buildkit.tolerations=[{"key": "pool", "operator": "Exists"}]',
        'cluster.mounts=[{"host_path": "/opt/env", "mount_path": "/opt/env"}]',
    ],
}
"""Settings that change objects: name → arguments for the default profile."""


def written(settings: Settings, folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.name: list(yaml.safe_load_all(path.read_text())) for path in write_objects(settings, "golden", folder)}


def objects_of(folder: Path, profile: str = "swe-qwen2.5-7b", *arguments: str) -> Iterator[dict[str, Any]]:
    for bodies in written(load_settings(profile, arguments, {}), folder).values():
        yield from bodies


def one(kind: str, name: str, objects: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return next(body for body in objects if (body["kind"], body["metadata"]["name"]) == (kind, name))


@functools.cache
def kubernetes() -> Any:
    return json.loads((HERE / "schemas" / "kubernetes-objects.schema.json").read_text())["$defs"]


@functools.cache
def ray_cluster_schema() -> Any:
    definition = yaml.load((CRDS / "RayCluster.ray.io.yaml").read_bytes(), LOADER)
    return strict(
        next(one for one in definition["spec"]["versions"] if one["name"] == "v1")["schema"]["openAPIV3Schema"]
    )


def strict(schema: Any) -> Any:
    """Unknown fields refused, as a server does when it is asked to; a number or a text where the schema says both."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.pop("additionalProperties", None)
    return closed


@functools.cache
def validator(api_version: str, kind: str) -> Draft202012Validator:
    if (api_version, kind) == (RAY_CLUSTERS.api_version, RAY_CLUSTERS.kind):
        schema = ray_cluster_schema()
        # The API server checks an object's head by itself, so that a CRD says nothing of it.
        head = {name: {} for name in ("apiVersion", "kind", "metadata")}
        return Draft202012Validator({**schema, "properties": {**schema["properties"], **head}})
    reference = f"#/$defs/io.k8s.api.{PACKAGES[api_version]}.{kind}"
    return Draft202012Validator({"$ref": reference, "$defs": kubernetes()})


def problems(body: dict[str, Any]) -> list[str]:
    return [
        f"{body['kind']} {'.'.join(map(str, best.absolute_path))}: {best.message}"
        for error in validator(body["apiVersion"], body["kind"]).iter_errors(body)
        if (best := best_match([error])) is not None
    ]


@pytest.mark.parametrize("profile", profile_names())
def test_the_objects_of_a_profile_are_the_reviewed_ones(profile: str, tmp_path: Path, golden: Any) -> None:
    for path in write_objects(load_settings(profile, [], {}), "golden", tmp_path):
        golden(HERE / "golden" / "objects" / profile / path.name, path.read_text(), parse=whole)


def whole(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_every_golden_folder_of_objects_belongs_to_a_profile() -> None:
    assert sorted(path.name for path in (HERE / "golden" / "objects").iterdir()) == profile_names()


@pytest.mark.parametrize("profile", profile_names())
def test_the_published_schemas_accept_the_objects_with_unknown_fields_refused(profile: str, tmp_path: Path) -> None:
    assert [line for body in objects_of(tmp_path, profile) for line in problems(body)] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_published_schemas_accept_what_settings_change(variant: str, tmp_path: Path) -> None:
    assert [
        line for body in objects_of(tmp_path, "swe-qwen2.5-7b", *VARIANTS[variant]) for line in problems(body)
    ] == []


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("PersistentVolumeClaim", "verl-models", ["spec", "accessMode"], ["ReadWriteMany"]),
        ("Role", "rayclustertest", ["rules", 0, "verb"], ["get"]),
        ("Deployment", "buildkitd", ["spec", "template", "spec", "containers", 0, "arg"], []),
        ("Deployment", "buildkitd", ["spec", "replicas"], "one"),
        ("NetworkPolicy", "buildkitd", ["spec", "ingress", 0, "from", 0, "podSelectors"], {}),
        ("RayCluster", "raycluster-verl", ["spec", "headGroupSpec", "serviceTypes"], "ClusterIP"),
        ("RayCluster", "raycluster-verl", ["spec", "headGroupSpec", "template", "spec", "containers", 0, "imag"], "x"),
    ],
)
def test_the_schema_test_would_find_a_typing_error(
    kind: str, name: str, path: list[Any], value: Any, tmp_path: Path
) -> None:
    body = copy.deepcopy(one(kind, name, objects_of(tmp_path)))
    place: Any = body
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert problems(body)


def test_the_guides_names_are_the_defaults(tmp_path: Path) -> None:
    made = {(body["kind"], body["metadata"]["name"]): body for body in objects_of(tmp_path)}
    assert set(made) >= {
        ("PersistentVolumeClaim", "verl-models"),
        ("PersistentVolumeClaim", "verl-dataset"),
        ("PersistentVolumeClaim", "verl-runs"),
        ("ServiceAccount", "rayclustertest"),
        ("Role", "rayclustertest"),
        ("RoleBinding", "rayclustertest"),
        ("Deployment", "buildkitd"),
        ("Service", "buildkitd"),
        ("RayCluster", "raycluster-verl"),
    }
    sizes = [made["PersistentVolumeClaim", name]["spec"] for name in ("verl-models", "verl-dataset")]
    assert [spec["resources"]["requests"]["storage"] for spec in sizes] == ["50Gi", "100Gi"]
    assert [spec["accessModes"] for spec in sizes] == [["ReadWriteMany"], ["ReadWriteMany"]]
    builder = made["Deployment", "buildkitd"]["spec"]["template"]
    assert builder["metadata"]["labels"]["app"] == "buildkitd"
    assert "tcp://0.0.0.0:1234" in builder["spec"]["containers"][0]["args"]
    assert made["Service", "buildkitd"]["spec"]["ports"][0]["port"] == 1234


def test_the_head_is_the_guides(tmp_path: Path) -> None:
    head = one("RayCluster", "raycluster-verl", objects_of(tmp_path))["spec"]["headGroupSpec"]
    assert head["serviceType"] == "ClusterIP"
    assert head["rayStartParams"]["dashboard-host"] == "0.0.0.0"
    spec = head["template"]["spec"]
    (container,) = spec["containers"]
    share = {"cpu": "50", "memory": "200Gi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": share, "limits": share}
    assert {"name": "RAY_GRAFANA_HOST", "value": "DISABLED"} in container["env"]
    assert spec["serviceAccountName"] == "rayclustertest"
    assert spec["securityContext"] == {"runAsUser": 0}
    assert "imagePullSecrets" not in spec
    claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]}
    assert {claims[mount["name"]]: mount["mountPath"] for mount in container["volumeMounts"][3:]} == {
        "verl-models": "/var/model",
        "verl-dataset": "/var/model-dataset",
    }
    assert [mount["mountPath"] for mount in container["volumeMounts"][:3]] == [
        "/workspace",
        "/workspace/models",
        "/workspace/datasets",
    ]


def test_what_settings_may_change_of_the_ray_cluster_shows(tmp_path: Path) -> None:
    arguments = [*VARIANTS["several-nodes"], *VARIANTS["private-images"]]
    cluster = one("RayCluster", "raycluster-verl", objects_of(tmp_path, "swe-qwen2.5-7b", *arguments))
    assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    for template in (cluster["spec"]["headGroupSpec"]["template"], group["template"]):
        labels = {"agentic-rl/run": "golden", "agentic-rl/role": "trainer"}
        assert labels.items() <= template["metadata"]["labels"].items()
        assert template["spec"]["imagePullSecrets"] == [{"name": "acr-registry"}]
        assert template["spec"]["priorityClassName"] == "high"
        assert "securityContext" not in template["spec"]


def test_a_disk_and_the_nodes_that_it_needs_show(tmp_path: Path) -> None:
    objects = list(objects_of(tmp_path, "swe-qwen2.5-7b", *VARIANTS["one-disk"]))
    claim = one("PersistentVolumeClaim", "verl-models", iter(objects))["spec"]
    assert (claim["accessModes"], claim["storageClassName"]) == (["ReadWriteOnce"], "disk")
    spec = one("RayCluster", "raycluster-verl", iter(objects))["spec"]["headGroupSpec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "gpu-1"}
    pool = {"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    assert spec["tolerations"] == [pool, {"key": "nvidia.com/gpu", "operator": "Exists"}]
    builder = one("Deployment", "buildkitd", iter(objects))["spec"]["template"]["spec"]
    assert (builder["nodeSelector"], builder["tolerations"]) == (
        {"pool": "build"},
        [{"key": "pool", "operator": "Exists"}],
    )
    assert {"name": "host-0", "mountPath": "/opt/env", "readOnly": True} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("variant", ["several-nodes", "private-images", "one-disk"])
def test_an_image_build_job_goes_where_the_run_goes_and_is_accepted(variant: str) -> None:
    cluster = load_settings("swe-qwen2.5-7b", VARIANTS[variant], {}).cluster
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "u"}
    build = ImageBuild(
        *("build-x-1", "golden", "shard-0", "0123", ["buildctl", "build"], "agentic-rl/steps:0.1.0", 3600, 86400),
        login_secret="acr-registry",
        tls_secret="buildkit-client-certs",
        has_workspace=True,
        owner=owner,
    )
    job = image_build_job(cluster, build)
    assert problems(job) == []
    assert job["metadata"]["labels"]["type"] == "image-build"
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"], "its work is BuildKit's, which holds no quota"
    spec = job["spec"]["template"]["spec"]
    assert spec.get("priorityClassName") == cluster.priority_class
    assert spec.get("nodeSelector", {}) == label_map(cluster.node_selector)
    assert spec.get("tolerations", []) == toleration_list(cluster.tolerations)
    secret = cluster.image_pull_secret
    assert spec.get("imagePullSecrets", []) == ([{"name": secret}] if secret else [])


@pytest.mark.parametrize("variant", ["several-nodes", "private-images", "one-disk"])
def test_the_pods_of_steps_go_where_the_run_goes(variant: str) -> None:
    settings = load_settings("swe-qwen2.5-7b", VARIANTS[variant], {})
    spec, cluster = build_workflow(settings, "swe-qwen2.5-7b", "golden")["spec"], settings.cluster
    assert spec.get("podPriorityClassName") == cluster.priority_class
    assert spec.get("nodeSelector", {}) == label_map(cluster.node_selector)
    assert spec.get("tolerations", []) == toleration_list(cluster.tolerations)
    secret = cluster.image_pull_secret
    assert spec.get("imagePullSecrets", []) == ([{"name": secret}] if secret else [])


def test_the_account_has_no_right_to_secrets_nor_to_all_of_anything(tmp_path: Path) -> None:
    for variant in VARIANTS.values():
        for body in objects_of(tmp_path, "swe-qwen2.5-7b", *variant):
            assert body["kind"] not in ("ClusterRole", "ClusterRoleBinding")
            for rule in body.get("rules", ()):
                words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
                assert not words & {"*", "secrets", "deletecollection"}


def test_the_binding_of_sandboxes_elsewhere_lies_there_and_names_the_account_here(tmp_path: Path) -> None:
    objects = list(objects_of(tmp_path, "swe-qwen2.5-7b", *VARIANTS["agent-sandbox-elsewhere"]))
    role = one("Role", "rayclustertest-agent-sandbox", iter(objects))
    binding = one("RoleBinding", "rayclustertest-agent-sandbox", iter(objects))
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "boxes"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rayclustertest", "namespace": "default"}]


def test_rights_for_sandboxes_are_of_their_provider_and_lie_where_they_live() -> None:
    elsewhere = load_settings("swe-qwen2.5-7b", VARIANTS["agent-sandbox-elsewhere"], {})
    (more,) = sandbox_rights(elsewhere)
    assert (more.name, more.namespace) == ("agent-sandbox", "boxes")
    groups = {group for rule in more.rules for group in rule["apiGroups"]}
    assert "extensions.agents.x-k8s.io" in groups
    assert "agents.kruise.io" not in groups
    older = load_settings("swe-qwen2.5-7b", ["sandbox.provider=kruise", "sandbox.api_group=apps.kruise.io"], {})
    assert "apps.kruise.io" in {group for rule in sandbox_rights(older)[0].rules for group in rule["apiGroups"]}
    assert sandbox_rights(load_settings("demo", [], {})) == []


def test_buildkit_lets_in_this_projects_pods_or_those_with_a_certificate(tmp_path: Path) -> None:
    policy = one("NetworkPolicy", "buildkitd", objects_of(tmp_path))["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 1234}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "agentic-rl"}
    (excepted,) = peer["podSelector"]["matchExpressions"]
    assert excepted == {"key": "agentic-rl/role", "operator": "NotIn", "values": ["sandbox", "prefetch"]}
    with_tls = list(objects_of(tmp_path, "swe-qwen2.5-7b", *VARIANTS["rootless-builder"]))
    assert ("NetworkPolicy", "buildkitd") not in {(body["kind"], body["metadata"]["name"]) for body in with_tls}
    spec = one("Deployment", "buildkitd", iter(with_tls))["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "--tlscacert=/certs/ca.pem" in container["args"]
    assert {"name": "certs", "secret": {"secretName": "buildkit-daemon-certs"}} in spec["volumes"]
    assert container["securityContext"]["runAsUser"] == 1000
    assert "privileged" not in container["securityContext"]


def test_rays_pods_let_in_their_run_and_sandboxes_only_at_the_proxys_port(tmp_path: Path) -> None:
    policy = one("NetworkPolicy", "ray-golden", objects_of(tmp_path, "swe-qwen2.5-7b", *VARIANTS["pods"]))["spec"]
    assert policy["podSelector"]["matchLabels"] == {"agentic-rl/run": "golden", "agentic-rl/role": "trainer"}
    own, sandboxes = policy["ingress"]
    run, clients = own["from"]
    assert run["podSelector"]["matchLabels"] == {"agentic-rl/run": "golden"}
    assert "sandbox" in run["podSelector"]["matchExpressions"][0]["values"]
    assert clients == {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    assert sandboxes["ports"] == [{"protocol": "TCP", "port": 8400}]
    closed = one("NetworkPolicy", "ray-golden", objects_of(tmp_path, "demo"))["spec"]
    assert len(closed["ingress"]) == 1


def test_what_settings_leave_to_others_is_not_written(tmp_path: Path) -> None:
    arguments = ["images.buildkit_address=tcp://buildkitd.tools:1234", "cluster.network_policies=false"]
    names = set(written(load_settings("demo", arguments, {}), tmp_path))
    assert names == {"10-claims.yaml", "20-account.yaml", "50-raycluster.yaml"}


def test_everything_carries_the_projects_label_and_only_what_is_the_runs_carries_the_run(tmp_path: Path) -> None:
    of_run = {"RayCluster raycluster-verl", "NetworkPolicy ray-golden"}
    for body in objects_of(tmp_path):
        labels = body["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "agentic-rl"
        assert ("agentic-rl/run" in labels) == (f"{body['kind']} {body['metadata']['name']}" in of_run)
        assert resource_of(body).kind == body["kind"]


def test_objects_are_written_without_machine_learning(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom workflows.objects import write_objects\n"
        "from workflows.settings import load_settings\n"
        f"write_objects(load_settings('swe-qwen2.5-7b', [], {{}}), 'r', Path({str(tmp_path)!r}))\n"
        "print(*sorted({'torch', 'ray', 'vllm', 'verl', 'transformers', 'harbor'} & set(sys.modules)))"
    )
    root = HERE.parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
