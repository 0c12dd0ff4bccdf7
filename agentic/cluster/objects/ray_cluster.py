"""The RayCluster that trains: the head, and one group of workers where a run has several nodes.

Owned here: what the guide's users find (`raycluster-verl`, its Service `raycluster-verl-head-svc`, the dashboard at
8265), requests that equal limits, the workspace, and the labels by which the sandboxes' NetworkPolicy
knows the pods that serve the proxy. What KubeRay adds by itself is left to it: the command that starts Ray, and shared
memory as large as the container's. Not its probes: they start bash and wget in the container every five seconds, which
the image would need and a node that trains pays for; Ray answers kubelet itself, with a token in use as well.
"""

from collections.abc import Mapping
from types import MappingProxyType

from agentic.cluster.labels import ROLE_LABEL, ROLE_TRAINER, labels_of_run
from agentic.cluster.objects.volumes import workspace_mounts, workspace_volumes
from agentic.cluster.resources import RAY_CLUSTERS, JsonObject
from agentic.cluster.settings import (
    ClusterSettings,
    HeadSettings,
    SecretKeySettings,
    WorkerSettings,
    label_map,
    toleration_list,
)

HEAD_PORTS = MappingProxyType({"gcs-server": 6379, "dashboard": 8265, "client": 10001})
"""Of the head's Service."""

DASHBOARD_HEALTH, AGENT_HEALTH = (8265, "/api/gcs_healthz"), (52365, "/api/local_raylet_healthz")
"""Port and path of what Ray says about itself without asking for a token."""

WORKER_GROUP = "workers"
HEAD_CONTAINER, WORKER_CONTAINER = "ray-head", "ray-worker"

GRACE_SECONDS = 120
"""What a pod gets to end in good order: Ray and vLLM stop their own children within it."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

NONE: Mapping[str, str] = MappingProxyType({})


def ray_cluster(
    settings: ClusterSettings,
    run_id: str,
    *,
    start: Mapping[str, str] = NONE,
    environment: Mapping[str, str] = NONE,
    secrets: Mapping[str, SecretKeySettings] = MappingProxyType({}),
) -> JsonObject:
    """`start` are further flags of `ray start`, such as `num-cpus`; `environment` and `secrets`, by the name of their
    variable, are added to every container's."""
    labels = labels_of_run(run_id, {ROLE_LABEL: ROLE_TRAINER})
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    metadata = {"namespace": settings.namespace, "labels": {**labels_of_run(run_id), **queue}}
    variables = [*_variables(settings, run_id, environment), *(_secret(*one) for one in secrets.items())]
    head = {
        "serviceType": "ClusterIP",
        "rayStartParams": {"dashboard-host": "0.0.0.0", **start},
        "template": _template(settings, labels, _container(settings, settings.head, variables)),
    }
    spec: JsonObject = {"rayVersion": settings.ray_version, "headGroupSpec": head}
    if settings.workers.replicas:
        spec["workerGroupSpecs"] = [_workers(settings, labels, variables, start)]
    return {**RAY_CLUSTERS.head(settings.head.name, **metadata), "spec": spec}


def _workers(
    settings: ClusterSettings, labels: Mapping[str, str], variables: list[JsonObject], start: Mapping[str, str]
) -> JsonObject:
    """Training needs all of them, so that their number is fixed."""
    replicas = settings.workers.replicas
    return {
        "groupName": WORKER_GROUP,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "rayStartParams": dict(start),
        "template": _template(settings, labels, _container(settings, settings.workers, variables)),
    }


def _template(settings: ClusterSettings, labels: Mapping[str, str], container: JsonObject) -> JsonObject:
    spec: JsonObject = {
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": True,
        # Each Service of the namespace would else put variables into the environment, some of which begin with RAY.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": workspace_volumes(settings),
    }
    if settings.run_as_user is not None:
        spec["securityContext"] = {"runAsUser": settings.run_as_user}
    if settings.image_pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    if settings.priority_class is not None:
        spec["priorityClassName"] = settings.priority_class
    if nodes := label_map((*settings.node_selector, *settings.ray_node_selector)):
        spec["nodeSelector"] = nodes
    if tolerations := toleration_list((*settings.tolerations, *settings.ray_tolerations)):
        spec["tolerations"] = tolerations
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def _container(
    settings: ClusterSettings, size: HeadSettings | WorkerSettings, variables: list[JsonObject]
) -> JsonObject:
    share = {"cpu": str(size.cpus), "memory": size.memory}
    if size.gpus:
        share[settings.gpu_resource] = str(size.gpus)
    is_head = isinstance(size, HeadSettings)
    ports = [{"name": name, "containerPort": port} for name, port in HEAD_PORTS.items()]
    return {
        "name": HEAD_CONTAINER if is_head else WORKER_CONTAINER,
        "image": settings.trainer_image,
        "imagePullPolicy": "IfNotPresent",
        "env": variables,
        **({"ports": ports} if is_head else {}),
        "resources": {"requests": dict(share), "limits": dict(share)},
        "volumeMounts": workspace_mounts(settings),
        # The dashboard takes jobs, so a head without it is not ready; the agent knows whether Ray itself lives.
        "readinessProbe": _probe(*(DASHBOARD_HEALTH if is_head else AGENT_HEALTH), after=5, failures=10),
        "livenessProbe": _probe(*AGENT_HEALTH, after=60, failures=120),
    }


def _probe(port: int, path: str, *, after: int, failures: int) -> JsonObject:
    """Patient: CPUs that all train make an answer late, and a head that is killed for it loses its job."""
    pace = {"initialDelaySeconds": after, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": failures}
    return {"httpGet": {"port": port, "path": path}, **pace}


def _variables(settings: ClusterSettings, run_id: str, environment: Mapping[str, str]) -> list[JsonObject]:
    values = {
        "RAY_GRAFANA_HOST": "DISABLED",
        # On a busy node Ray's own patience ends heads that are well: one whose dashboard is not loaded in a minute, and
        # one that has not answered the control store, in the same pod, for another.
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
        "RAY_health_check_failure_threshold": "40",
        "AGENTIC_WORKSPACE": settings.workspace_path,
        "AGENTIC_TARGET": "argo",
        "AGENTIC_RUN_ID": run_id,
        **environment,
    }
    address = {"name": "LOCAL_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    given = [{"name": name, "value": value} for name, value in values.items()]
    return given if "LOCAL_IP" in values else [address, *given]


def _secret(variable: str, secret: SecretKeySettings) -> JsonObject:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
